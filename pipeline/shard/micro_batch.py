"""What a rank runs in one forward pass: a micro-batch, or the chunks of it that are the rank's.

A micro-batch is its pieces back to back. Under context parallelism each rank holds some chunks of
it; a chunk's queries `[start, stop)` need the keys `[0, stop)` of the same piece, so with keys and
queries laid out chunk by chunk, causal attention aligned at the end of both is the exact mask.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np

from pipeline.shard.schema import NO_LABEL


@dataclass(frozen=True, kw_only=True, eq=False)
class MicroBatch:
    """One row of a shard.

    `tokens` has the shape (tokens,) and the shards' own type; all further arrays have one entry a
    piece, but `cu_seqlens`, which has one more. A piece is the tokens `doc_start` and after of
    document `doc_id` of source `source`, in that source's pass `epoch`.
    """

    step: int
    slot: int
    tokens: np.ndarray
    cu_seqlens: np.ndarray
    """int32, boundaries of the pieces: first 0, last = number of tokens."""
    source: np.ndarray
    epoch: np.ndarray
    doc_id: np.ndarray
    doc_start: np.ndarray
    last_labels: np.ndarray
    """int64: the document's token after each piece, or -100 where the document ends."""
    num_targets: int
    workload: int

    @cached_property
    def labels(self) -> np.ndarray:
        """The next token of each token's piece, -100 where there is none; int64, (tokens,)."""
        labels = np.empty(len(self.tokens), np.int64)
        labels[:-1] = self.tokens[1:]
        labels[self.cu_seqlens[1:] - 1] = self.last_labels
        return labels

    @cached_property
    def position_ids(self) -> np.ndarray:
        """Each token's place in its piece; int64, (tokens,)."""
        return spans(np.zeros(len(self.last_labels), np.int64), np.diff(self.cu_seqlens))

    @property
    def max_seqlen(self) -> int:
        """Tokens of the longest piece."""
        return int(np.diff(self.cu_seqlens).max())


@dataclass(frozen=True, kw_only=True, eq=False)
class Chunks:
    """One row of a CP plan; the first four arrays have one entry a chunk."""

    cp_rank: np.ndarray
    piece: np.ndarray
    """Index of the piece; -1 for pads, whose `start` and `stop` count the micro-batch's pads."""
    start: np.ndarray
    stop: np.ndarray
    strategy: str
    predicted: np.ndarray
    """Work of each CP rank."""
    considered: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    """Work of the slowest rank under each strategy that was a candidate."""


@dataclass(frozen=True, kw_only=True, eq=False)
class RankMicroBatch:
    """A micro-batch as one context-parallel rank sees it.

    `tokens`, `labels`, `position_ids` and `query_index` have one entry a local token, `key_index`
    one a key that some local chunk needs: for each chunk in turn the keys `[0, stop)` of its piece.
    Both indexes are places in the whole micro-batch, so that gathered keys are
    `all_keys[key_index]` when `all_keys` is in micro-batch order. All int64.
    """

    step: int
    slot: int
    cp_rank: int
    cp_size: int
    tokens: np.ndarray
    labels: np.ndarray
    position_ids: np.ndarray
    query_index: np.ndarray
    key_index: np.ndarray
    cu_seqlens_q: np.ndarray
    """int32, (chunks + 1,): boundaries of the chunks among the local tokens."""
    cu_seqlens_k: np.ndarray
    """int32, (chunks + 1,): boundaries of the chunks' keys in `key_index`."""
    max_seqlen_q: int
    max_seqlen_k: int

    @property
    def num_targets(self) -> int:
        """Local tokens that have a label."""
        return int(np.count_nonzero(self.labels != NO_LABEL))


class Spans(NamedTuple):
    """Chunks of tokens, int64, (chunks,), ascending by (cp_rank, piece, start); no pads."""

    cp_rank: np.ndarray
    piece: np.ndarray
    start: np.ndarray
    stop: np.ndarray

    def take(self, index: np.ndarray) -> Spans:
        return Spans(*(column[index] for column in self))


def token_chunks(
    cu_seqlens: np.ndarray, cp_row: Chunks | None, cp_rank: int, cp_size: int
) -> Spans:
    """All ranks' chunks of a micro-batch, without its pads; at degree 1 its pieces, whole.

    Args:
        cu_seqlens: boundaries of the pieces, integers (pieces + 1,).
        cp_row: the micro-batch's row of the CP plan for `cp_size`; None where `cp_size` is 1.
        cp_rank: who asks, 0 <= cp_rank < cp_size.
        cp_size: number of CP ranks.

    Raises:
        ValueError: the rank does not exist, or the row is missing.
    """
    if not 0 <= cp_rank < cp_size:
        raise ValueError(f"cp_rank {cp_rank} is not in 0..{cp_size - 1}")
    if cp_row is None:
        if cp_size != 1:
            raise ValueError(f"cp_size is {cp_size}, but no CP plan was given; only 1 needs none")
        length = np.diff(cu_seqlens).astype(np.int64)
        zeros = np.zeros_like(length)
        return Spans(zeros, np.arange(len(length)), zeros, length)
    columns = (cp_row.cp_rank, cp_row.piece, cp_row.start, cp_row.stop)
    chunks = Spans(*(column.astype(np.int64) for column in columns))
    tokens = chunks.piece >= 0
    return chunks if tokens.all() else chunks.take(tokens)


def rank_view(
    micro_batch: MicroBatch, cp_row: Chunks | None, cp_rank: int, cp_size: int
) -> RankMicroBatch:
    """The part of a micro-batch that belongs to a context-parallel rank, in the plan's order.

    Pads of a plan that has them are left out; `padding.padded_view` keeps them.

    Args:
        micro_batch: the whole of it.
        cp_row: its row of the CP plan for `cp_size`; None where `cp_size` is 1, which needs none.
        cp_rank: 0 <= cp_rank < cp_size; a rank without chunks gets empty arrays.
        cp_size: number of CP ranks.

    Raises:
        ValueError: the rank does not exist, or the row is missing.
    """
    chunks = token_chunks(micro_batch.cu_seqlens, cp_row, cp_rank, cp_size)
    mine = chunks.take(chunks.cp_rank == cp_rank)
    base, start, stop = micro_batch.cu_seqlens[mine.piece].astype(np.int64), mine.start, mine.stop
    query_index = spans(base + start, stop - start)
    return RankMicroBatch(
        step=micro_batch.step,
        slot=micro_batch.slot,
        cp_rank=cp_rank,
        cp_size=cp_size,
        tokens=micro_batch.tokens[query_index].astype(np.int64),
        labels=micro_batch.labels[query_index],
        position_ids=spans(start, stop - start),
        query_index=query_index,
        key_index=spans(base, stop),
        cu_seqlens_q=boundaries(stop - start),
        cu_seqlens_k=boundaries(stop),
        max_seqlen_q=int((stop - start).max(initial=0)),
        max_seqlen_k=int(stop.max(initial=0)),
    )


def spans(starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """The integers of each span `[start, start + length)`, one span after the other; int64.

    Example:
        >>> spans(np.array([7, 2]), np.array([2, 3]))
        array([7, 8, 2, 3, 4])
    """
    lengths = lengths.astype(np.int64)
    ends = np.cumsum(lengths)
    total = int(ends[-1]) if len(ends) else 0
    return np.arange(total, dtype=np.int64) + np.repeat(starts - (ends - lengths), lengths)


def boundaries(lengths: np.ndarray) -> np.ndarray:
    """Spans of these lengths laid end to end: int32, one more entry than spans, first 0."""
    cu_seqlens = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=cu_seqlens[1:])
    return cu_seqlens
