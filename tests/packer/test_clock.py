"""The pipeline's clock against closed forms, numbers worked out by hand, and an event queue."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packer import schedule_kernels
from packer.clock import Clock, choose_order, even_step_times, step_times
from packer.orders import ORDERS, slots_of_rank
from packer.program import program_of
from packer.schedule import Coupling, Schedule
from tests.reference_schedule import Cluster, event_driven


def time_of(work: list[int], schedule: Schedule, **options: Any) -> int:
    """Of one step."""
    return int(step_times(np.array([work]), schedule, **options)[0])


def twin(schedule: Schedule, work: list[int], tokens: list[int], order: str) -> int:
    """The same by the event queue."""
    first_token, last_token = schedule.token_costs
    forward, backward = schedule.pass_times
    cluster = Cluster(
        pp_size=schedule.pp_size,
        chunks=schedule.virtual_stages,
        shares=schedule.shares,
        forward=forward,
        backward=backward,
        lockstep=schedule.coupling == "lockstep",
        first_token=first_token,
        last_token=last_token,
    )
    num, size = len(work) // schedule.dp_size, schedule.dp_size
    slots = [slots_of_rank(order, dp_rank=r, dp_size=size, num=num) for r in range(size)]
    return event_driven(
        cluster,
        [[work[slot] for slot in mine] for mine in slots],
        [[tokens[slot] for slot in mine] for mine in slots],
    )


@st.composite
def steps(draw: st.DrawFn) -> tuple[Schedule, list[int], list[int], str]:
    """A schedule, the workload and tokens of a step's slots in any order, and a rule."""
    pp_size = draw(st.integers(1, 5))
    virtual_stages = draw(st.integers(1, 3)) if pp_size > 1 else 1
    num = draw(st.integers(1, 9))
    if virtual_stages > 1:
        num = pp_size * draw(st.integers(1, 3))
    stages = pp_size * virtual_stages
    shares = draw(
        st.one_of(st.just([]), st.lists(st.integers(0, 4), min_size=stages, max_size=stages))
    )
    schedule = Schedule(
        dp_size=draw(st.integers(1, 3)),
        pp_size=pp_size,
        virtual_stages=virtual_stages,
        coupling=draw(st.sampled_from(["gradient_sync", "lockstep"])),
        backward_factor=draw(st.sampled_from([2.0, 3.0, 2.5, 1.0])),
        stage_shares=tuple(shares) if any(shares) else (),
        embedding_cost=draw(st.sampled_from([0.0, 1 / 256])),
        head_cost=draw(st.sampled_from([0.0, 3 / 256])),
    )
    slots = num * schedule.dp_size
    work = draw(st.lists(st.integers(0, 60), min_size=slots, max_size=slots))
    tokens = draw(st.lists(st.integers(1, 9), min_size=slots, max_size=slots))
    return schedule, work, tokens, draw(st.sampled_from(list(ORDERS)))


@given(steps())
@settings(max_examples=400, deadline=None)
def test_the_clock_equals_the_event_queue(step: tuple[Schedule, list[int], list[int], str]) -> None:
    schedule, work, tokens, order = step
    found = time_of(work, schedule, tokens=np.array([tokens]), order=order)
    assert found == twin(schedule, work, tokens, order)


@pytest.mark.parametrize("coupling", ["gradient_sync", "lockstep"])
@pytest.mark.parametrize(("pp_size", "virtual_stages"), [(1, 1), (2, 1), (4, 1), (2, 2), (4, 3)])
@pytest.mark.parametrize("groups", [1, 2, 5])
def test_equal_micro_batches_take_the_closed_form(
    pp_size: int, virtual_stages: int, groups: int, coupling: Coupling
) -> None:
    # the bubble is p - 1 chunks: 1/v of that without interleaving (arXiv 2104.04473, section 2.2)
    num = groups * pp_size
    schedule = Schedule(
        dp_size=2, pp_size=pp_size, virtual_stages=virtual_stages, coupling=coupling
    )
    expected = 3 * 7 * (num * virtual_stages + pp_size - 1)
    assert time_of([7] * (2 * num), schedule) == expected
    assert even_step_times(np.array([7 * 2 * num]), 2 * num, schedule) == [256 * expected]


def test_one_stage_takes_the_sum_in_any_order() -> None:
    for order in ORDERS:
        assert time_of([5, 2, 1], Schedule(), order=order) == 24


def test_the_largest_micro_batch_also_fills_the_bubble() -> None:
    # 2 stages, one heavy micro-batch in front: the sum, and (stages - 1) times the largest
    assert time_of([9, 1, 1, 1], Schedule(pp_size=2)) == 3 * (12 + 9)


def test_a_light_micro_batch_in_front_lets_the_second_rank_begin_early() -> None:
    # a to d are 1, 9, 1, 1; a forward and its backward are Fa and Ba, with their ends
    # rank 0: Fa 1, Fb 10, Ba 12, Fc 13, Bb 55, Fd 56, Bc 58, Bd 61
    # rank 1: Fa 2, Ba 4, Fb 19, Bb 37, Fc 38, Bc 40, Fd 57, Bd 59
    assert time_of([9, 1, 1, 1], Schedule(pp_size=2), order="light_first_1") == 61


def test_a_step_of_two_ranks_by_hand() -> None:
    # rank 0: F0 0-2, F1 2-3,                   B0 8-12, B1 12-14
    # rank 1:         F0 2-4, B0 4-8, F1 8-9, B1 9-11
    assert time_of([2, 1], Schedule(pp_size=2)) == 14


def test_uneven_stages_by_hand() -> None:
    # shares 1 and 3, one micro-batch of 2: forwards 2 and 6, backwards 12 and 4
    assert time_of([2], Schedule(pp_size=2, stage_shares=(1, 3))) == 24
    # a head of half a token's linear work on 4 tokens: 128 of 1/256 each, in units of 1/2 stage
    tokens = np.array([[4]])
    head = Schedule(pp_size=2, head_cost=0.5)
    assert time_of([2], head, tokens=tokens) == 3 * (2 + (2 + 2 * 128 * 4))
    with pytest.raises(ValueError, match="give tokens"):
        time_of([2], head)


def test_recomputation_makes_backwards_longer() -> None:
    assert time_of([2, 1], Schedule(backward_factor=3)) == 4 * 3


def test_lockstep_waits_for_the_slowest_at_every_micro_batch() -> None:
    # slots are dealt back and forth: rank 0 runs 4 then 1, rank 1 runs 1 then 4
    assert time_of([4, 1, 4, 1], Schedule(dp_size=2)) == 3 * 5
    assert time_of([4, 1, 4, 1], Schedule(dp_size=2, coupling="lockstep")) == 3 * (4 + 4)


@given(steps())
@settings(max_examples=50, deadline=None)
def test_lockstep_is_never_faster(step: tuple[Schedule, list[int], list[int], str]) -> None:
    schedule, work, tokens, order = step
    options = {"tokens": np.array([tokens]), "order": order}
    both = []
    for coupling in ("gradient_sync", "lockstep"):
        both.append(time_of(work, replace(schedule, coupling=coupling), **options))
    assert both[0] <= both[1]


def test_steps_are_timed_one_by_one() -> None:
    rng = np.random.Generator(np.random.PCG64(3))
    work = np.sort(rng.integers(1, 100, (5, 12)), axis=1)[:, ::-1]
    work.setflags(write=False)
    schedule = Schedule(dp_size=3, pp_size=2)
    alone = [time_of(row.tolist(), schedule) for row in work]
    assert step_times(work, schedule).tolist() == alone
    assert len(step_times(work[:0], schedule)) == 0


def test_kernels_do_the_same_uncompiled(monkeypatch: pytest.MonkeyPatch) -> None:
    def uncompiled(kernel: Callable[..., Any]) -> Callable[..., Any]:
        return getattr(kernel, "py_func", kernel)

    schedule = Schedule(dp_size=2, pp_size=2, virtual_stages=2, coupling="lockstep")
    work = np.array([[9, 7, 7, 5, 4, 4, 2, 1]])
    compiled = step_times(work, schedule).tolist()
    for name in ("run", "set_costs"):
        monkeypatch.setattr(schedule_kernels, name, uncompiled(getattr(schedule_kernels, name)))
    out = np.empty(1, np.int64)
    uncompiled(schedule_kernels.run_steps)(
        program_of(schedule, 4), work.ravel(), np.zeros(8, np.int64),
        np.array([0, 3, 4, 7, 1, 2, 5, 6]), np.ones(4, np.int64), np.zeros(4, np.int64), 2, True,
        out,
    )  # fmt: skip
    assert out.tolist() == compiled


def test_times_beyond_64_bits_are_refused() -> None:
    with pytest.raises(ValueError, match="goes beyond 64 bits"):
        time_of([1 << 61], Schedule())


class TestClock:
    WORK = np.array([[90, 10, 10, 10], [80, 20, 10, 5]])
    TOKENS = np.ones_like(WORK)

    def clock(self, schedule: Schedule, order: str) -> Clock:
        clock = Clock(schedule, 4, order)
        clock.add(self.WORK[:1], self.TOKENS[:1])
        clock.add(self.WORK[1:], self.TOKENS[1:])
        return clock

    def test_the_ratio_is_that_of_sums(self) -> None:
        schedule = Schedule(dp_size=2, pp_size=2)
        times = step_times(self.WORK, schedule).sum()
        even = 3 * self.WORK.sum() / 4 * (2 + 2 - 1)
        assert self.clock(schedule, "identity").ratio == pytest.approx(times / even)

    def test_auto_takes_the_order_of_least_time(self) -> None:
        schedule = Schedule(pp_size=2)
        ratios = {order: self.clock(schedule, order).ratio for order in ORDERS}
        auto = self.clock(schedule, "auto")
        assert auto.ratio == min(ratios.values()) < ratios["identity"]
        assert ratios[auto.order] == auto.ratio

    def test_without_a_pipeline_every_order_takes_the_same_time(self) -> None:
        assert self.clock(Schedule(dp_size=2), "auto").order == "identity"

    def test_a_change_must_be_worth_it(self) -> None:
        assert choose_order({"identity": 100_000, "middle": 99_901}) == "identity"
        assert choose_order({"identity": 100_000, "middle": 99_900}) == "middle"
        assert choose_order({"identity": 5, "middle": 5}) == "identity"
        assert choose_order({"middle": 5}) == "middle"

    def test_what_is_no_order_is_refused(self) -> None:
        with pytest.raises(ValueError, match="no micro_batch_order 'zigzag'; known: identity, mid"):
            Clock(Schedule(), 4, "zigzag")
