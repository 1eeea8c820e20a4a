"""What no CP plan can be made of is refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from packer.context_parallel import STRATEGIES, CPOptions, plan_context_parallel
from packer.context_parallel.measures import CPMeter
from packer.throughput import Throughput
from packer.workload import Workload
from tests.packer.small_cp_plans import EVEN, WORKLOAD, Rows, plan, ragged


def test_work_that_does_not_fit_the_arithmetic_is_refused() -> None:
    slow_tails = Throughput(query_tokens=(1,), key_tokens=(1, 1 << 20), achieved=((1024.0, 1.0),))
    options = CPOptions(throughput=slow_tails)
    for strategy in EVEN:
        with pytest.raises(ValueError, match="pack shorter micro-batches"):
            plan([[1 << 26]], 2, strategy, Workload(crossover=47_100), options)
    fits = plan([[1 << 22]], 2, "mixed", Workload(crossover=47_100), options)
    assert fits.predicted.min() > 1 << 40


@pytest.mark.parametrize(
    ("rows", "cp_size", "strategy", "message"),
    [
        ([[1]], 0, "per_document", "cp_size is 0"),
        ([[1]], 2, "per_token", "known are per_sequence, per_document"),
        ([[4], []], 2, "per_document", "without pieces"),
        ([[4, 0]], 2, "per_document", "shortest piece has 0 tokens"),
        ([[1 << 26, 1]], 2, "per_sequence", "longest micro-batch 67108865"),
    ],
)
def test_nonsense_is_refused(rows: Rows, cp_size: int, strategy: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        plan(rows, cp_size, strategy)


def test_offsets_must_span_the_pieces() -> None:
    for offsets in ([], [0], [1, 2], [0, 3]):
        with pytest.raises(ValueError, match="from 0 to 2"):
            plan_context_parallel(
                np.array([5, 5]),
                np.array(offsets, dtype=np.int64),
                cp_size=2,
                strategy="per_document",
                workload=WORKLOAD,
            )


def test_no_micro_batches_make_an_empty_plan() -> None:
    for strategy in STRATEGIES:
        got = plan([], 4, strategy)
        assert (got.num_rows, len(got.cp_rank), got.predicted.shape) == (0, 0, (0, 4))


def test_a_meter_takes_one_degree_and_something_to_measure() -> None:
    meter = CPMeter()
    with pytest.raises(ValueError, match="no micro-batch was measured"):
        meter.result()
    meter.add(plan([[8]], 2, "per_document"), *ragged([[8]]))
    with pytest.raises(ValueError, match="degree 4 after 2"):
        meter.add(plan([[8]], 4, "per_document"), *ragged([[8]]))
    with pytest.raises(ValueError, match="3 row_offsets for 1 micro-batches"):
        meter.add(plan([[8]], 2, "per_document"), *ragged([[8], [8]]))


def test_a_plan_of_the_wrong_types_is_refused() -> None:
    good = plan([[8]], 2, "per_document")
    with pytest.raises(ValueError, match=r"CPPlan.piece is int64\[3\]; it must be int32\[3\]"):
        replace(good, piece=good.piece.astype(np.int64))
    with pytest.raises(ValueError, match=r"CPPlan.predicted is int64\[1, 2\]"):
        replace(good, cp_size=3)
    with pytest.raises(ValueError, match="2 strategies for 1 micro-batches"):
        replace(good, strategy=("per_document", "per_sequence"))
