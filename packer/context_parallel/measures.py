"""What context-parallel plans are worth: balance, wasted tiles, keys and values on the move."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np

from packer.context_parallel.kernels import load_ranks, measure
from packer.context_parallel.plan import CPPlan
from packer.throughput import FLAT
from packer.workload import SCALE


@dataclass(frozen=True, slots=True, kw_only=True)
class CPBalance:
    """Measures over many micro-batches: sums of numerators over sums of denominators."""

    cp_attention: float
    """Slowest rank's tile-padded area over an equal share of the uncut pieces'; 1.0 is ideal."""
    cp_attention_mean: float
    """Mean over micro-batches of the same ratio."""
    cp_tokens: float
    """Most tokens on a rank, padding with them, over an equal share of the pieces'."""
    tile_waste: float
    """Tile-padded area of the chunks over the exact causal area of the pieces."""
    kv_cut: float
    """Share of tokens in pieces that are cut over ranks."""
    kv_needed: float
    """KV tokens that ranks need and do not hold, over what an all-gather brings; 0 at degree 1."""
    predicted_time: float
    """Mean over micro-batches of the slowest rank's predicted work, linear-token equivalents."""

    def as_dict(self) -> dict[str, float]:
        return asdict(self)


class CPMeter:
    """Adds up plans of one CP degree, part by part, in exact integers but for one mean."""

    def __init__(self) -> None:
        self._cp_size = self._rows = 0
        self._slowest_area = self._slowest_tokens = self._chunk_area = self._slowest_work = 0
        self._causal_area = self._whole_area = self._tokens = self._cut = self._needed = 0
        self._ratios = 0.0

    def add(self, plan: CPPlan, piece_tokens: np.ndarray, row_offsets: np.ndarray) -> None:
        """Count the micro-batches of a plan.

        Args:
            plan: of these micro-batches.
            piece_tokens: integers (pieces,), as the plan was made from.
            row_offsets: integers (rows + 1,), likewise.

        Raises:
            ValueError: another CP degree than before, or another number of micro-batches.
        """
        if self._cp_size not in (0, plan.cp_size):
            raise ValueError(f"a plan of CP degree {plan.cp_size} after {self._cp_size}; use one")
        if len(row_offsets) != plan.num_rows + 1:
            raise ValueError(
                f"{len(row_offsets)} row_offsets for {plan.num_rows} micro-batches of the plan"
            )
        self._cp_size = plan.cp_size
        pieces = np.ascontiguousarray(piece_tokens, dtype=np.int64)
        offsets = np.ascontiguousarray(row_offsets, dtype=np.int64)
        chunks = (plan.piece, plan.start, plan.stop)
        loads = np.zeros((4, plan.num_rows, plan.cp_size), dtype=np.int64)
        load_ranks(plan.row_offsets, plan.cp_rank, *chunks, FLAT.table(), loads)
        tokens, area, _, received = loads
        sums, whole = np.zeros(3, dtype=np.int64), np.zeros(plan.num_rows, dtype=np.int64)
        measure(pieces, offsets, plan.row_offsets, *chunks, sums, whole)
        slowest = area.max(axis=1)
        self._rows += plan.num_rows
        self._slowest_area += int(slowest.sum())
        self._slowest_tokens += int(tokens.max(axis=1).sum())
        self._slowest_work += int(plan.predicted.max(axis=1).sum())
        self._ratios += float((slowest * plan.cp_size / whole).sum())
        self._chunk_area += int(area.sum())
        self._whole_area += int(whole.sum())
        self._needed += int(received.sum())
        self._causal_area += int(sums[0])
        self._tokens += int(sums[1])
        self._cut += int(sums[2])

    def result(self) -> CPBalance:
        """The measures of all that was added.

        Raises:
            ValueError: nothing was added.
        """
        if not self._tokens:
            raise ValueError("no micro-batch was measured; add a plan first")
        gathered = (self._cp_size - 1) * self._tokens
        return CPBalance(
            cp_attention=self._slowest_area * self._cp_size / self._whole_area,
            cp_attention_mean=self._ratios / self._rows,
            cp_tokens=self._slowest_tokens * self._cp_size / self._tokens,
            tile_waste=self._chunk_area / self._causal_area,
            kv_cut=self._cut / self._tokens,
            kv_needed=self._needed / gathered if gathered else 0.0,
            predicted_time=self._slowest_work / SCALE / self._rows,
        )
