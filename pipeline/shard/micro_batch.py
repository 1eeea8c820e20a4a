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

from pipeline.shard.blocks import Blocks
from pipeline.shard.schema import NO_LABEL
from pipeline.shard.spans import boundaries, fill_spans, spans, take_spans

_BLOCKS = Blocks()


@dataclass(frozen=True, kw_only=True, eq=False)
class PackedTokens:
    """Pieces back to back: of a micro-batch all that a model needs.

    `tokens` has the shape (tokens,) and the shards' own type.
    """

    step: int
    slot: int
    tokens: np.ndarray
    cu_seqlens: np.ndarray
    """int32, boundaries of the pieces: first 0, last = number of tokens."""
    last_labels: np.ndarray
    """int64: the document's token after each piece, or -100 where the document ends."""
    workload: int
    """As the plan has it, in the manifest's unit."""

    @cached_property
    def labels(self) -> np.ndarray:
        """The next token of each token's piece, -100 where there is none; int64, (tokens,)."""
        labels = np.empty(len(self.tokens), np.int64)
        _fill_labels(labels, self.tokens, self.cu_seqlens, self.last_labels)
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
class MicroBatch(PackedTokens):
    """One row of a shard, and with its tokens where they come from.

    The arrays have one entry a piece. A piece is the tokens `doc_start` and after of document
    `doc_id` of source `source`, in that source's pass `epoch`.
    """

    source: np.ndarray
    epoch: np.ndarray
    doc_id: np.ndarray
    doc_start: np.ndarray
    num_targets: int


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
    `all_keys[key_index]` when `all_keys` is in micro-batch order; they are made when first asked
    for, since degree 1 and ranks that exchange keys need none. All int64.
    """

    step: int
    slot: int
    cp_rank: int
    cp_size: int
    tokens: np.ndarray
    labels: np.ndarray
    position_ids: np.ndarray
    query_starts: np.ndarray
    """int64, (chunks,): where each chunk's queries begin in the whole micro-batch."""
    key_starts: np.ndarray
    """int64, (chunks,): where its piece, so its keys, begin there."""
    cu_seqlens_q: np.ndarray
    """int32, (chunks + 1,): boundaries of the chunks among the local tokens."""
    cu_seqlens_k: np.ndarray
    """int32, (chunks + 1,): boundaries of the chunks' keys in `key_index`."""
    max_seqlen_q: int
    max_seqlen_k: int
    workload: int
    """Of the whole micro-batch, as the plan has it, in the manifest's unit."""

    @cached_property
    def query_index(self) -> np.ndarray:
        return spans(self.query_starts, np.diff(self.cu_seqlens_q))

    @cached_property
    def key_index(self) -> np.ndarray:
        return spans(self.key_starts, np.diff(self.cu_seqlens_k))

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
    micro_batch: PackedTokens, cp_row: Chunks | None, cp_rank: int, cp_size: int
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
    if cp_size == 1 and cp_rank == 0:
        return _whole_view(micro_batch)
    chunks = token_chunks(micro_batch.cu_seqlens, cp_row, cp_rank, cp_size)
    mine = chunks.take(chunks.cp_rank == cp_rank)
    start, stop = mine.start, mine.stop
    key_starts = micro_batch.cu_seqlens[mine.piece].astype(np.int64)
    query_starts = key_starts + start
    cu_seqlens_q = boundaries(stop - start)
    tokens, labels, position_ids = _BLOCKS.take((3, int(cu_seqlens_q[-1])), "int64")
    take_spans(micro_batch.tokens, query_starts, stop - start, tokens)
    _fill_labels(labels, tokens, cu_seqlens_q, _labels_at_stop(micro_batch, mine))
    fill_spans(position_ids, start, stop - start)
    return RankMicroBatch(
        step=micro_batch.step,
        slot=micro_batch.slot,
        cp_rank=cp_rank,
        cp_size=cp_size,
        tokens=tokens,
        labels=labels,
        position_ids=position_ids,
        query_starts=query_starts,
        key_starts=key_starts,
        cu_seqlens_q=cu_seqlens_q,
        cu_seqlens_k=boundaries(stop),
        max_seqlen_q=int((stop - start).max(initial=0)),
        max_seqlen_k=int(stop.max(initial=0)),
        workload=micro_batch.workload,
    )


def _whole_view(micro_batch: PackedTokens) -> RankMicroBatch:
    """The view of the only rank: its chunks are the pieces."""
    cu_seqlens = micro_batch.cu_seqlens
    lengths = cu_seqlens[1:] - cu_seqlens[:-1]
    starts = cu_seqlens[:-1].astype(np.int64)
    tokens, labels, position_ids = _BLOCKS.take((3, len(micro_batch.tokens)), "int64")
    tokens[:] = micro_batch.tokens
    _fill_labels(labels, tokens, cu_seqlens, micro_batch.last_labels)
    fill_spans(position_ids, np.zeros_like(starts), lengths)
    longest = int(lengths.max())
    return RankMicroBatch(
        step=micro_batch.step,
        slot=micro_batch.slot,
        cp_rank=0,
        cp_size=1,
        tokens=tokens,
        labels=labels,
        position_ids=position_ids,
        query_starts=starts,
        key_starts=starts,
        cu_seqlens_q=cu_seqlens.copy(),
        cu_seqlens_k=cu_seqlens.copy(),
        max_seqlen_q=longest,
        max_seqlen_k=longest,
        workload=micro_batch.workload,
    )


def _fill_labels(
    labels: np.ndarray, tokens: np.ndarray, cu_seqlens: np.ndarray, last_labels: np.ndarray
) -> None:
    """Each token's next one; at the end of each part that `cu_seqlens` bounds, its last label."""
    labels[:-1] = tokens[1:]
    labels[cu_seqlens[1:] - 1] = last_labels


def _labels_at_stop(micro_batch: PackedTokens, chunks: Spans) -> np.ndarray:
    """The label of each chunk's last token: the piece's token at `stop`, or its last label."""
    place = micro_batch.cu_seqlens[chunks.piece] + chunks.stop
    ends = place == micro_batch.cu_seqlens[chunks.piece + 1]
    inside = micro_batch.tokens[np.where(ends, 0, place)]
    return np.where(ends, micro_batch.last_labels[chunks.piece], inside.astype(np.int64))
