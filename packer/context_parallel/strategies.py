"""Every strategy by its name, and how a plan is made with one."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from packer.context_parallel.adaptive import least_time
from packer.context_parallel.head_tail import padded_head_tail, per_document, per_sequence
from packer.context_parallel.kernels import load_ranks
from packer.context_parallel.mixed import mixed, per_document_aligned
from packer.context_parallel.options import CPCost, CPOptions, cost_of
from packer.context_parallel.plan import ChunkTable, CPPlan
from packer.context_parallel.whole_document import whole_document
from packer.plan import Int64
from packer.workload import LONGEST_PIECE, Workload

Strategy = Callable[[Int64, Int64, int, CPCost, CPOptions], ChunkTable]
"""`(piece_tokens, row_offsets, cp_size, cost, options) -> chunks`, each row by itself."""
ADAPTIVE = "adaptive"
DEFAULT = ADAPTIVE
_CUTS: dict[str, Strategy] = {
    "per_sequence": per_sequence,
    "per_document": per_document,
    "per_document_aligned": per_document_aligned,
    "mixed": mixed,
    "padded_head_tail": padded_head_tail,
}
DIAGNOSTIC: dict[str, Strategy] = {"whole_document": whole_document}
"""Strategies whose ranks hold unequal tokens, for comparison only."""
STRATEGIES = (*_CUTS, ADAPTIVE)
"""Strategies that plans are written with."""


def plan_context_parallel(
    piece_tokens: np.ndarray,
    row_offsets: np.ndarray,
    *,
    cp_size: int,
    strategy: str,
    workload: Workload,
    options: CPOptions | None = None,
) -> CPPlan:
    """Plan many micro-batches at one CP degree; each row depends on its own pieces alone.

    Args:
        piece_tokens: integers, at least 1 each, (pieces,), the rows' pieces back to back.
        row_offsets: integers (rows + 1,), as `Steps.row_offsets`: row j has the pieces
            `row_offsets[j] : row_offsets[j + 1]`.
        cp_size: number of CP ranks, at least 1.
        strategy: a name in `STRATEGIES` or `DIAGNOSTIC`.
        workload: what pieces cost, with which work is predicted.
        options: kernels, network and padding; None for the defaults.

    Raises:
        ValueError: a bad argument, an empty row or piece, a row above 2^26 tokens, above
            `options.max_tokens` once padded, or of attention whose work does not fit int64.
    """
    known = (*STRATEGIES, *DIAGNOSTIC)
    if strategy not in known:
        raise ValueError(f'no CP strategy "{strategy}"; known are {", ".join(known)}')
    if cp_size < 1:
        raise ValueError(f"cp_size is {cp_size}; it must be at least 1")
    tokens, offsets = _checked(piece_tokens, row_offsets)
    options = options or CPOptions()
    cost = cost_of(tokens, offsets, workload, options)
    if strategy == ADAPTIVE:
        return least_time(
            [_plan(name, tokens, offsets, cp_size, cost, options) for name in options.candidates]
        )
    return _plan(strategy, tokens, offsets, cp_size, cost, options)


def _checked(piece_tokens: np.ndarray, row_offsets: np.ndarray) -> tuple[Int64, Int64]:
    tokens = np.ascontiguousarray(piece_tokens, dtype=np.int64)
    offsets = np.ascontiguousarray(row_offsets, dtype=np.int64)
    if not len(offsets) or offsets[0] != 0 or offsets[-1] != len(tokens):
        raise ValueError(f"row_offsets must run from 0 to {len(tokens)}, the number of pieces")
    if np.any(np.diff(offsets) <= 0):
        raise ValueError("a micro-batch without pieces: row_offsets must strictly increase")
    if len(tokens):
        shortest, longest_row = int(tokens.min()), int(np.add.reduceat(tokens, offsets[:-1]).max())
        if shortest < 1 or longest_row > LONGEST_PIECE:
            raise ValueError(
                f"the shortest piece has {shortest} tokens and the longest micro-batch "
                f"{longest_row}; pieces need at least 1 and micro-batches at most {LONGEST_PIECE}"
            )
    return tokens, offsets


def _plan(
    name: str, tokens: Int64, offsets: Int64, cp_size: int, cost: CPCost, options: CPOptions
) -> CPPlan:
    cut = _CUTS[name] if name in _CUTS else DIAGNOSTIC[name]
    table = cut(tokens, offsets, cp_size, cost, options)
    rows, count = len(offsets) - 1, int(table.offsets[-1])
    cp_rank, piece = (table.chunks[:count, column].astype(np.int32) for column in (0, 1))
    start, stop = (table.chunks[:count, column].copy() for column in (2, 3))
    loads = np.zeros((4, rows, cp_size), dtype=np.int64)
    load_ranks(table.offsets, cp_rank, piece, start, stop, cost.grid, loads)
    return CPPlan(
        cp_size=cp_size,
        strategy=(name,) * rows,
        row_offsets=table.offsets,
        cp_rank=cp_rank,
        piece=piece,
        start=start,
        stop=stop,
        predicted=cost.predict(loads[0], loads[2], loads[3]),
        considered=np.zeros((rows, 0), np.int64),
    )
