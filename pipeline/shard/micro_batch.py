"""What a rank runs in one forward pass: a micro-batch, or the chunks of it that are the rank's.

A micro-batch is its pieces back to back. Under context parallelism each rank holds some chunks of
it; a chunk's queries `[start, stop)` need the keys `[0, stop)` of the same piece, so with keys and
queries laid out chunk by chunk, causal attention aligned at the end of both is the exact mask.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from pipeline.shard.schema import NO_LABEL
from pipeline.shard.spans import spans


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
