"""CP plans of rows given as lists, and ways to look at them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from packer.context_parallel import STRATEGIES, CPOptions, CPPlan, plan_context_parallel
from packer.context_parallel.measures import CPBalance, CPMeter
from packer.throughput import FLAT
from packer.workload import Workload
from tests import reference_cp as slow

WORKLOAD = Workload(crossover=1000)
FIG3_CROSSOVER = Workload(crossover=47_100)
AREA = CPOptions(throughput=FLAT)
"""Time is area, so that figures can be worked out by hand."""
HEAD_TAIL = ("per_sequence", "per_document")
EVEN = tuple(name for name in STRATEGIES if name != "padded_head_tail")
"""Strategies that leave every token, and no more, on ranks that hold equally many."""
Rows = Sequence[Sequence[int]]


def ragged(rows: Rows) -> tuple[np.ndarray, np.ndarray]:
    """Rows as read-only values and offsets, the way a file's map hands them over."""
    tokens = np.array([length for row in rows for length in row], dtype=np.int64)
    offsets = np.cumsum([0] + [len(row) for row in rows], dtype=np.int64)
    tokens.flags.writeable = offsets.flags.writeable = False
    return tokens, offsets


def plan(
    rows: Rows,
    cp_size: int,
    strategy: str,
    workload: Workload = WORKLOAD,
    options: CPOptions = AREA,
) -> CPPlan:
    return plan_context_parallel(
        *ragged(rows), cp_size=cp_size, strategy=strategy, workload=workload, options=options
    )


def chunks(plan: CPPlan, row: int) -> list[slow.Chunk]:
    one = plan.rows(row, row + 1)
    columns = (one.cp_rank, one.piece, one.start, one.stop)
    return list(zip(*(column.tolist() for column in columns), strict=True))


def balance(rows: Rows, plan: CPPlan) -> CPBalance:
    meter = CPMeter()
    meter.add(plan, *ragged(rows))
    return meter.result()


def picture(plan: CPPlan, row: int, pieces: Sequence[int]) -> str:
    """Each token's rank, pieces apart: "0110 000111111000"."""
    owners = [["."] * length for length in pieces]
    for rank, piece, start, stop in chunks(plan, row):
        for i in range(start, stop):
            assert owners[piece][i] == ".", "a token on two ranks"
            owners[piece][i] = str(rank)
    return " ".join("".join(owner) for owner in owners)
