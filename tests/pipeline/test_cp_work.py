"""What `verify` works out of a CP plan is what planners predict, for every model and strategy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packer.context_parallel import STRATEGIES, CPOptions, plan_context_parallel
from packer.throughput import FLAT, PUBLISHED, Throughput
from packer.workload import Span, Workload
from pipeline.verify.cp_work import ChunkList, Degree, work_of

GRID = Throughput(
    query_tokens=(1, 130, 1000),
    key_tokens=(64, 700),
    achieved=((1.0, 2.5), (3.0, 4.0), (3.5, 7.0)),
)
WORKLOADS = (
    Workload(crossover=47_100),
    Workload(crossover=900, spans=(Span(mask="window", tokens=200, crossover=300),)),
    Workload(crossover=None),
)


def worked_out(rows: list[list[int]], cp_size: int, strategy: str, **given: object) -> None:
    options, workload = given["options"], given["workload"]
    assert isinstance(options, CPOptions)
    assert isinstance(workload, Workload)
    tokens = np.array([length for row in rows for length in row])
    offsets = np.cumsum([0, *map(len, rows)])
    plan = plan_context_parallel(
        tokens, offsets, cp_size=cp_size, strategy=strategy, workload=workload, options=options
    )
    chunks = ChunkList(
        row=np.repeat(np.arange(len(rows)), np.diff(plan.row_offsets)),
        cp_rank=plan.cp_rank.astype(np.int64),
        piece=plan.piece.astype(np.int64),
        start=plan.start,
        stop=plan.stop,
    )
    degree = Degree(
        cp_size=cp_size,
        strategy=strategy,
        candidates=(),
        exchange=options.exchange,
        throughput=options.throughput_of(workload),
        workload=workload,
        scale=256,
    )
    assert work_of(chunks, tokens, offsets, degree).tolist() == plan.predicted.tolist()


@given(
    rows=st.lists(st.lists(st.integers(1, 3000), min_size=1, max_size=6), min_size=1, max_size=4),
    cp_size=st.sampled_from([2, 3, 8]),
    strategy=st.sampled_from(STRATEGIES),
    throughput=st.sampled_from([FLAT, PUBLISHED, GRID]),
    exchange=st.sampled_from([0.0, 0.0071, 3.5]),
    workload=st.sampled_from(WORKLOADS),
)
@settings(max_examples=60, deadline=None)
def test_work_is_what_was_predicted(
    rows: list[list[int]],
    cp_size: int,
    strategy: str,
    throughput: Throughput,
    exchange: float,
    workload: Workload,
) -> None:
    options = CPOptions(throughput=throughput, kv_exchange=exchange)
    worked_out(rows, cp_size, strategy, options=options, workload=workload)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_long_pieces_are_worked_out_exactly(strategy: str) -> None:
    options = CPOptions(kv_exchange=0.056)
    rows = [[131_072], [90_001, 1, 127, 20_000, 20_943], [1] * 30]
    worked_out(rows, 16, strategy, options=options, workload=WORKLOADS[0])
