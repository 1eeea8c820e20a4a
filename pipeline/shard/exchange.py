"""Which keys and values context-parallel ranks send one another, and where each lands.

An all-gather brings every rank every token of the micro-batch. Here a rank gets what its own
chunks read and nothing else: of a piece in which its last chunk ends at `stop`, the tokens
`[0, stop)` that it does not hold, each once. Both sides read the same lists off the plan, so there
is no handshake:

- a rank sends of each of its chunks the part before that `stop` of the peer, its chunks in order,
  so what goes from one rank to another ascends by place in the micro-batch;
- a rank's buffer is its own tokens, then what it got from rank 0, from rank 1, and so on.

A piece that is whole on a rank is never sent. Gradients of received keys and values return to
their owners along the same lists with the two sides swapped.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pipeline.shard.micro_batch import Chunks
from pipeline.shard.rank_chunks import Spans, token_chunks
from pipeline.shard.spans import boundaries, spans


@dataclass(frozen=True, kw_only=True, eq=False)
class RankExchange:
    """A rank's queries and keys for varlen attention, over keys that ranks exchange as needed.

    With `kv` the keys and values of the local tokens, in order:

        sent = kv[send_index]
        received = all_to_all(sent, send_counts -> receive_counts)
        keys = concatenate([kv, received])[buffer_index]

    Queries and chunks are those of `rank_view`, and so are the keys: `keys` is what
    `all_keys[key_index]` is there. Indexes are int64. `send_index` holds a token once a peer that
    needs it, `buffer_index` once a chunk that does: gradients add up.
    """

    cp_rank: int
    cp_size: int
    position_ids: np.ndarray
    """int64, (local tokens,): each token's place in its piece."""
    cu_seqlens_q: np.ndarray
    """int32, (chunks + 1,): boundaries of the chunks among the local tokens."""
    cu_seqlens_k: np.ndarray
    """int32, (chunks + 1,): boundaries of the chunks' keys in `buffer_index`."""
    max_seqlen_q: int
    max_seqlen_k: int
    send_index: np.ndarray
    """(sent,): local tokens to send, those for rank 0 first."""
    send_counts: np.ndarray
    """int64, (cp_size,): how many of them each rank gets; none the rank itself."""
    receive_counts: np.ndarray
    """int64, (cp_size,): how many tokens come from each rank."""
    buffer_index: np.ndarray
    """(keys,): for each chunk in turn where the keys `[0, stop)` of its piece are in the buffer."""

    @property
    def num_tokens(self) -> int:
        """Local tokens."""
        return len(self.position_ids)

    @property
    def num_received(self) -> int:
        return int(self.receive_counts.sum())


def rank_exchange(
    cu_seqlens: np.ndarray, cp_row: Chunks | None, cp_rank: int, cp_size: int
) -> RankExchange:
    """What a context-parallel rank sends, receives and reads; needs no tokens.

    Args:
        cu_seqlens: boundaries of the micro-batch's pieces, integers (pieces + 1,).
        cp_row: its row of the CP plan for `cp_size`, pads are left out; None where `cp_size` is 1.
        cp_rank: 0 <= cp_rank < cp_size; a rank without chunks gets empty arrays.
        cp_size: number of CP ranks.

    Raises:
        ValueError: the rank does not exist, the row is missing, or its chunks leave tokens out.
    """
    chunks = token_chunks(cu_seqlens, cp_row, cp_rank, cp_size)
    begin = cu_seqlens[:-1].astype(np.int64)
    own = chunks.take(chunks.cp_rank == cp_rank)
    length = own.stop - own.start
    reach = np.zeros(len(begin), np.int64)  # of each piece the keys [0, reach) are read here
    np.maximum.at(reach, own.piece, own.stop)
    received = np.clip(np.minimum(chunks.stop, reach[chunks.piece]) - chunks.start, 0, None)
    received[chunks.cp_rank == cp_rank] = 0
    sent = _sent(chunks, own, len(begin), cp_rank, cp_size)
    local = np.cumsum(length) - length  # where each own chunk begins among the local tokens
    num_own, num_received = int(length.sum()), int(received.sum())
    if num_own + num_received != reach.sum():
        raise ValueError(
            f"CP rank {cp_rank} of {cp_size} reads {reach.sum()} keys, the plan's chunks give it "
            f"{num_own + num_received}: they do not hold every token once; run steelyard verify"
        )
    place = np.empty(int(cu_seqlens[-1]), np.int64)  # in the buffer, of each token that is there
    place[spans(begin[own.piece] + own.start, length)] = np.arange(num_own)
    place[spans(begin[chunks.piece] + chunks.start, received)] = num_own + np.arange(num_received)
    return RankExchange(
        cp_rank=cp_rank,
        cp_size=cp_size,
        position_ids=spans(own.start, length),
        cu_seqlens_q=boundaries(length),
        cu_seqlens_k=boundaries(own.stop),
        max_seqlen_q=int(length.max(initial=0)),
        max_seqlen_k=int(own.stop.max(initial=0)),
        send_index=spans(np.tile(local, cp_size), sent.ravel()),
        send_counts=sent.sum(axis=1),
        receive_counts=_sums(received, chunks.cp_rank, cp_size),
        buffer_index=place[spans(begin[own.piece], own.stop)],
    )


def _sent(chunks: Spans, own: Spans, num_pieces: int, cp_rank: int, cp_size: int) -> np.ndarray:
    """How many tokens of each own chunk, from its start, go to each rank; (cp_size, own chunks)."""
    column = np.cumsum(np.diff(own.piece, prepend=-1) > 0) - 1  # pieces that are here, numbered
    number = np.full(num_pieces, -1, np.int64)
    number[own.piece] = column
    place = number[chunks.piece]
    here = place >= 0
    reach = np.zeros((cp_size, int(column.max(initial=-1)) + 1), np.int64)
    np.maximum.at(reach, (chunks.cp_rank[here], place[here]), chunks.stop[here])
    sent = np.clip(np.minimum(reach[:, column], own.stop) - own.start, 0, None)
    sent[cp_rank] = 0
    return sent


def _sums(values: np.ndarray, group: np.ndarray, num_groups: int) -> np.ndarray:
    """Sums of integers by group, int64, (num_groups,)."""
    sums = np.zeros(num_groups, np.int64)
    np.add.at(sums, group, values)
    return sums
