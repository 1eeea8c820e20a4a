"""Which tokens of a micro-batch each context-parallel rank computes, as a table of chunks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from packer.plan import Int64


@dataclass(frozen=True, slots=True, eq=False)
class ChunkTable:
    """Chunks as strategies write them, with room to spare at the end."""

    chunks: np.ndarray
    """int64 (capacity, 4): cp_rank, piece, start, stop."""
    offsets: Int64
    """Where each micro-batch's chunks begin, (rows + 1,)."""

    @classmethod
    def empty(cls, capacity: int, row_offsets: Int64) -> ChunkTable:
        return cls(np.empty((capacity, 4), np.int64), np.zeros(len(row_offsets), np.int64))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CPPlan:
    """The chunks of many micro-batches at one CP degree.

    Chunks of row j are `row_offsets[j] : row_offsets[j + 1]`, ascending by (cp_rank, piece,
    start); none is empty, and two of one rank that touch in one piece are one.
    """

    cp_size: int
    strategy: tuple[str, ...]
    """What made each row, (rows,)."""
    row_offsets: Int64
    """(rows + 1,), first 0."""
    cp_rank: np.ndarray
    """int32 (chunks,)."""
    piece: np.ndarray
    """int32 (chunks,), index of the piece in its micro-batch; -1 for pad tokens."""
    start: Int64
    """(chunks,), first token in the piece, or among the micro-batch's pad tokens."""
    stop: Int64
    """(chunks,), the token after the last."""
    predicted: Int64
    """(rows, cp_size), work of each rank in the unit of `Workload`, without its constant."""
    considered: Int64
    """(rows, candidates), the slowest rank's predicted work under each strategy that was a
    candidate, for those that choose; (rows, 0) for the others."""

    def __post_init__(self) -> None:
        rows, chunks = len(self.row_offsets) - 1, len(self.start)
        wanted = {
            "row_offsets": (np.int64, (rows + 1,)),
            "cp_rank": (np.int32, (chunks,)),
            "piece": (np.int32, (chunks,)),
            "start": (np.int64, (chunks,)),
            "stop": (np.int64, (chunks,)),
            "predicted": (np.int64, (rows, self.cp_size)),
            "considered": (np.int64, (rows, self.considered.shape[-1])),
        }
        for name, (dtype, shape) in wanted.items():
            array = getattr(self, name)
            if array.dtype != dtype or array.shape != shape:
                raise ValueError(
                    f"CPPlan.{name} is {array.dtype}{list(array.shape)}; it must be "
                    f"{np.dtype(dtype)}{list(shape)}"
                )
        if len(self.strategy) != rows:
            raise ValueError(f"{len(self.strategy)} strategies for {rows} micro-batches; give each")
        if self.row_offsets[0] != 0 or self.row_offsets[-1] != chunks:
            raise ValueError("row_offsets must run from 0 to the number of chunks")

    @property
    def num_rows(self) -> int:
        return len(self.strategy)

    def rows(self, start: int, stop: int) -> CPPlan:
        """Micro-batches `start` to `stop` of these."""
        offsets = self.row_offsets[start : stop + 1]
        chunks = slice(int(offsets[0]), int(offsets[-1]))
        return CPPlan(
            cp_size=self.cp_size,
            strategy=self.strategy[start:stop],
            row_offsets=offsets - offsets[0],
            cp_rank=self.cp_rank[chunks],
            piece=self.piece[chunks],
            start=self.start[chunks],
            stop=self.stop[chunks],
            predicted=self.predicted[start:stop],
            considered=self.considered[start:stop],
        )
