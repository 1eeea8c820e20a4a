"""The pipeline's clock against closed forms and an event-driven twin."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packer.plan import slot_of
from packer.schedule_kernels import even_time_1f1b, run_1f1b, slowest_rank_times, time_1f1b


def uncompiled(kernel: Callable[..., Any]) -> Callable[..., Any]:
    return getattr(kernel, "py_func", kernel)


Task = tuple[str, int]
"""F or B, and the micro-batch."""


def orders_1f1b(num: int, stages: int) -> list[list[Task]]:
    """What each stage runs, in order."""
    orders = []
    for stage in range(stages):
        warm = min(stages - 1 - stage, num)
        order: list[Task] = [("F", index) for index in range(warm)]
        for index in range(num - warm):
            order += [("F", warm + index), ("B", index)]
        order += [("B", index) for index in range(num - warm, num)]
        orders.append(order)
    return orders


def event_driven(work: list[int], stages: int) -> int:
    """Stages take their next task when it is ready and they are idle; a queue of task ends."""
    orders = orders_1f1b(len(work), stages)
    done: set[tuple[int, str, int]] = set()
    busy = [False] * stages
    events: list[tuple[int, int, str, int]] = []
    now = 0
    while any(orders) or events:
        for stage, order in enumerate(orders):
            if busy[stage] or not order:
                continue
            kind, index = order[0]
            if kind == "F":
                needs = (stage - 1, "F", index) if stage else None
                length = work[index]
            else:
                last = stage == stages - 1
                needs = (stage, "F", index) if last else (stage + 1, "B", index)
                length = 2 * work[index]
            if needs is None or needs in done:
                order.pop(0)
                busy[stage] = True
                heapq.heappush(events, (now + length, stage, kind, index))
        now, stage, kind, index = heapq.heappop(events)
        done.add((stage, kind, index))
        busy[stage] = False
    return now


@given(st.lists(st.integers(1, 50), min_size=1, max_size=12), st.integers(1, 6))
@settings(max_examples=200, deadline=None)
def test_1f1b_equals_the_event_driven_twin(work: list[int], stages: int) -> None:
    expected = event_driven(work, stages)
    assert time_1f1b(np.array(work), stages) == expected
    assert uncompiled(run_1f1b)(np.array(work), stages) == expected


@pytest.mark.parametrize("stages", [1, 2, 4])
@pytest.mark.parametrize("num", [1, 3, 8])
def test_equal_micro_batches_take_the_closed_form(num: int, stages: int) -> None:
    assert time_1f1b(np.full(num, 7), stages) == 3 * 7 * (num + stages - 1)
    assert even_time_1f1b(7 * num, num, stages) == 3 * 7 * (num + stages - 1)


def test_one_stage_takes_the_sum_in_any_order() -> None:
    assert time_1f1b(np.array([5, 1, 2]), 1) == time_1f1b(np.array([2, 5, 1]), 1) == 24


def test_the_largest_micro_batch_also_fills_the_bubble() -> None:
    # 2 stages, one heavy micro-batch: the sum, and (stages - 1) times the largest
    assert time_1f1b(np.array([9, 1, 1, 1]), 2) == 3 * (12 + 9)


def test_the_slowest_rank_decides_a_step_and_ranks_run_their_slots() -> None:
    rng = np.random.Generator(np.random.PCG64(3))
    dp_size, num, stages, steps = 3, 4, 2, 5
    work = np.sort(rng.integers(1, 100, (steps, num * dp_size)), axis=1)[:, ::-1]
    flat = np.ascontiguousarray(work).ravel()
    flat.setflags(write=False)
    out = np.empty(steps, np.int64)
    slowest_rank_times(flat, num, dp_size, stages, out)
    for step in range(steps):
        ranks = [
            [
                int(work[step, slot_of(micro_batch=i, dp_rank=rank, dp_size=dp_size)])
                for i in range(num)
            ]
            for rank in range(dp_size)
        ]
        assert out[step] == max(event_driven(rank, stages) for rank in ranks)
    again = np.empty(steps, np.int64)
    uncompiled(slowest_rank_times)(flat, num, dp_size, stages, again)
    np.testing.assert_array_equal(out, again)


@pytest.mark.parametrize(("work", "stages"), [([], 1), ([1], 0)])
def test_a_pipeline_of_nothing_is_refused(work: list[int], stages: int) -> None:
    with pytest.raises(ValueError, match="at least one of each"):
        time_1f1b(np.array(work, np.int64), stages)
