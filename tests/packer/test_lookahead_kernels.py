"""The kernels of look-ahead: what a step costs, how pieces fit and settle, sources' bounds."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packer.orders import slot_of
from packer.packing.config import PackingConfig
from packer.packing.greedy import limits_of
from packer.packing.search import annealing, fluid, groups, moves, settling
from packer.packing.search.objective import Objective
from packer.workload import SCALE


def loads(
    draw: st.DrawFn,
) -> tuple[list[int], list[int], int, int]:
    """Work and tokens of a step's micro-batches, their bound in tokens, and filler that fits."""
    num = draw(st.integers(1, 6))
    most = draw(st.integers(1, 50))
    tokens = draw(st.lists(st.integers(0, most), min_size=num, max_size=num))
    work = [length * SCALE + length * length for length in tokens]
    return work, tokens, most, draw(st.integers(0, most * num - sum(tokens)))


def water_level(work: list[int], room: list[int], filler: int, rate: int) -> Fraction:
    """The heaviest micro-batch after so much filler was poured over them, step by step."""
    level, left = Fraction(min(work)), Fraction(filler)
    while left:
        rising = [j for j in range(len(work)) if work[j] <= level < work[j] + rate * room[j]]
        corners = [Fraction(w) for w in work] + [
            Fraction(w + rate * r) for w, r in zip(work, room, strict=True)
        ]
        step = min(corner for corner in corners if corner > level) - level
        poured = min(left, step * len(rising) / rate)
        if rising:
            step = poured * rate / len(rising)
        level, left = level + step, left - poured
    reached = [
        max(Fraction(w), min(level, Fraction(w + rate * r)))
        for w, r in zip(work, room, strict=True)
    ]
    return max(reached)


class TestCost:
    @given(st.composite(loads)())
    @settings(max_examples=200, deadline=None)
    def test_is_the_water_level_times_the_micro_batches(
        self, case: tuple[list[int], list[int], int, int]
    ) -> None:
        work, tokens, most, filler = case
        room = [most - length for length in tokens]
        found = fluid.step_cost(*load_of(work, tokens, most), filler, -1)
        level = water_level(work, room, filler, SCALE)
        assert found == pytest.approx(float(level) * len(work), rel=1e-9)

    def test_of_even_loads_is_the_same_under_every_norm(self) -> None:
        load = load_of([300, 300, 300], [1, 1, 1], 9)
        for power in (-1, 2, 6):
            assert fluid.step_cost(*load, 6, power) == pytest.approx(3 * (300 + 512))

    def test_falls_under_a_norm_when_heavy_pieces_gather(self) -> None:
        def both(heavy_here: int, heavy_there: int, power: int) -> float:
            steps = [[9_000] * k + [100] * (4 - k) for k in (heavy_here, heavy_there)]
            return sum(fluid.step_cost(*load_of(work, [1] * 4, 1), 0, power) for work in steps)

        assert both(1, 3, 2) < both(2, 2, 2)
        assert both(1, 3, -1) == both(2, 2, -1)


def load_of(
    work: list[int],
    tokens: list[int],
    max_tokens: int,
    *,
    dp_size: int | None = None,
    bubble: float = 0.0,
    lockstep: bool = False,
) -> tuple[fluid.Load, fluid.Bounds]:
    bounds = fluid.Bounds(
        num=len(work),
        max_tokens=max_tokens,
        max_displacement=16,
        filler_rate=float(SCALE),
        budget=0.0,
        dearest=5.0 * SCALE,
        token_work=float(SCALE),
        least_tokens=0,
        most_tokens=max_tokens * len(work),
        dp_size=dp_size or len(work),
        bubble=bubble,
        lockstep=lockstep,
    )
    load = fluid.Load(np.array(work, np.float64), np.array(tokens, np.int64), np.zeros(len(work)))
    return load, bounds


def ranks_time(work: list[int], dp_size: int, bubble: int, lockstep: bool) -> int:
    """Time of a step's slowest rank, rank by rank and turn by turn."""
    each = len(work) // dp_size
    turns = [
        [work[slot_of(micro_batch=index, dp_rank=rank, dp_size=dp_size)] for rank in range(dp_size)]
        for index in range(each)
    ]
    if lockstep:
        slowest = [max(turn) for turn in turns]
        return sum(slowest) + bubble * max(slowest)
    ranks = list(zip(*turns, strict=True))
    return max(sum(rank) + bubble * max(rank) for rank in ranks)


class TestTime:
    @given(
        st.lists(st.integers(1, 1000), min_size=12, max_size=12),
        st.sampled_from([1, 2, 3, 4, 6, 12]),
        st.integers(0, 3),
        st.booleans(),
    )
    @settings(max_examples=200, deadline=None)
    def test_is_that_of_the_slowest_rank_in_the_search_and_in_the_result(
        self, work: list[int], dp_size: int, bubble: int, lockstep: bool
    ) -> None:
        falling = sorted(work, reverse=True)
        even = 12 / (12 / dp_size + bubble)  # so that even micro-batches cost what they weigh
        expected = ranks_time(falling, dp_size, bubble, lockstep) * even
        objective = Objective(dp_size=dp_size, bubble=bubble, lockstep=lockstep)
        assert objective.times(np.array([falling]))[0] == pytest.approx(expected)
        load, bounds = load_of(
            falling, [1] * 12, 1, dp_size=dp_size, bubble=float(bubble), lockstep=lockstep
        )
        assert fluid.step_cost(load, bounds, 0, -1) == pytest.approx(expected)

    def test_of_a_filled_step_counts_the_filler(self) -> None:
        load, bounds = load_of([5000, 100, 100, 100], [1, 1, 1, 1], 99, dp_size=2, bubble=1.0)
        # 6 tokens of 256 over the three light ones: 612 each; ranks 5000 + 612 and 612 + 612
        expected = (5000 + 612 + 5000) * 4 / 3
        assert fluid.step_cost(load, bounds, 6, -1) == pytest.approx(expected, rel=1e-3)


class TestFit:
    def test_moves_what_has_no_room_to_the_nearest_step_that_has(self) -> None:
        step = np.array([0, 0, 0, 0, 1])
        tokens = np.array([9, 9, 8, 7, 2])
        _, bounds = load_of([0, 0], [0, 0], 10)
        arrival = np.zeros(5, np.int64)
        assert fluid.make_fit(step, arrival, tokens, tokens * 1.0, bounds, 3)
        assert step.tolist() == [0, 0, 1, 1, 1]

    def test_fails_where_displacement_forbids_it(self) -> None:
        step, tokens = np.array([0, 0, 0]), np.array([9, 9, 8])
        _, bounds = load_of([0, 0], [0, 0], 10)
        near = bounds._replace(max_displacement=0)
        assert not fluid.make_fit(step, step.copy(), tokens, tokens * 1.0, near, 3)


class TestSettling:
    LIMITS = limits_of(PackingConfig(num_micro_batches=2, context_length=8, max_tokens=8), 1)

    def settle(self, tokens: list[int], step: list[int], steps: int) -> tuple[list[int], bool]:
        lengths = np.array(tokens)
        order = np.argsort(-lengths, kind="stable")
        row, _, whole = settling.settle(lengths, lengths, np.array(step), order, self.LIMITS, steps)
        return row.tolist(), whole

    def test_puts_pieces_into_the_lightest_micro_batch_of_their_step(self) -> None:
        assert self.settle([6, 4, 2, 7, 3], [0, 0, 0, 1, 1], 2) == ([0, 1, 1, 2, 3], True)

    def test_hands_on_what_finds_no_room_before_the_crumbs_of_the_next_step(self) -> None:
        # 5 has no room beside 8 and 6; in step 1 it goes before the 2 and the 1s
        row, whole = self.settle([8, 6, 5, 2, 1, 1, 1], [0, 0, 0, 1, 1, 1, 1], 2)
        assert (row, whole) == ([0, 1, 2, 3, 3, 3, 3], True)

    def test_goes_back_from_the_last_step_where_there_is_room_before_it(self) -> None:
        # 4 finds step 1 full; it is the second heaviest of step 0, whose slots are by work
        assert self.settle([3, 3, 8, 8, 4], [0, 0, 1, 1, 1], 2) == ([0, 1, 2, 3, 0], True)

    def test_gives_up_where_a_piece_finds_no_room_or_a_micro_batch_none(self) -> None:
        assert not self.settle([8, 8, 1], [0, 0, 0], 1)[1]
        assert not self.settle([8], [0], 1)[1]


@pytest.mark.parametrize("other", [1, 2])
def test_what_an_exchange_takes_out_of_sources_bounds_is_counted_on_both_sides(other: int) -> None:
    """Piece 0 (source 0, 9 tokens) for one of the same source (5 tokens) or another one (4)."""
    zeros = np.zeros(3, np.int64)
    held = np.array([[9, 4], [5, 0]]) if other == 1 else np.array([[9, 0], [5, 4]])
    window = moves.Window(
        tokens=np.array([9, 5, 4]),
        work=zeros * 1.0,
        arrival=zeros,
        source=np.array([0, 0, 1]),
        step=np.array([0, 1, 1 if other == 2 else 0]),
        filler=zeros,
        carry=zeros,
        least_of_source=np.array([6, 0]),
        most_of_source=np.array([8, 3]),
    )

    def outside(table: np.ndarray) -> int:
        low = np.maximum(0, window.least_of_source - table).sum()
        return int(low + np.maximum(0, table - window.most_of_source).sum())

    after = held.copy()
    for piece, step, to in ((0, 0, 1), (other, 1, 0)):
        after[step, window.source[piece]] -= window.tokens[piece]
        after[to, window.source[piece]] += window.tokens[piece]
    found = moves.sources_beyond(window, held, 0, other, 0, 1)
    assert found == outside(after) - outside(held)


def window_of(tokens: list[int], arrival: list[int], filler: list[int]) -> moves.Window:
    """Long pieces and filler where they arrive, one source."""
    order = np.argsort(-np.array(tokens), kind="stable")
    lengths = np.array(tokens)[order]
    return moves.Window(
        tokens=lengths,
        work=lengths * 256.0 + lengths * lengths,
        arrival=np.array(arrival)[order],
        source=np.zeros(len(tokens), np.int64),
        step=np.array(arrival)[order],
        filler=np.array(filler),
        carry=np.zeros(len(filler) + 1, np.int64),
        least_of_source=np.zeros(1, np.int64),
        most_of_source=np.array([1 << 40]),
    )


@st.composite
def windows(draw: st.DrawFn) -> moves.Window:
    steps = draw(st.integers(2, 6))
    num_long = draw(st.integers(1, 12))
    tokens = draw(st.lists(st.integers(300, 1000), min_size=num_long, max_size=num_long))
    arrival = draw(st.lists(st.integers(0, steps - 1), min_size=num_long, max_size=num_long))
    return window_of(tokens, arrival, draw(st.lists(st.just(2000), min_size=steps, max_size=steps)))


class TestSearch:
    BOUNDS = load_of([0] * 4, [0] * 4, 4000)[1]

    @given(windows(), st.integers(0, 20_000), st.booleans())
    @settings(max_examples=60, deadline=None, derandomize=True)
    def test_keeps_filler_room_and_budget_and_gets_no_worse(
        self, before: moves.Window, budget: int, at_once: bool
    ) -> None:
        bounds = self.BOUNDS._replace(budget=float(budget), max_displacement=3)
        after = before._replace(
            step=before.step.copy(), filler=before.filler.copy(), carry=before.carry.copy()
        )
        start = 0.7 if at_once else 0.0
        if not annealing.search(after, bounds, 400, start, np.uint64(7)):
            return
        assert after.filler.sum() == before.filler.sum()
        assert after.filler.min() >= 0
        assert np.abs(after.step - after.arrival).max() <= 3
        crossing = np.cumsum(before.filler - after.filler)  # filler that runs after it arrived
        moved = (after.tokens * np.abs(after.step - after.arrival)).sum() + np.abs(crossing).sum()
        assert moved <= budget
        assert self.cost(after, bounds) <= self.cost(before, bounds) * (1 + 1e-9) or not at_once

    def cost(self, window: moves.Window, bounds: fluid.Bounds) -> float:
        """Of all steps, worked out anew."""
        load, total = load_of([0] * 4, [0] * 4, 4000)[0], 0.0
        for step, filler in enumerate(window.filler):
            members = np.flatnonzero(window.step == step)
            assert fluid.put(members, len(members), window.tokens, window.work, bounds, load)
            assert fluid.room_of(load, bounds) >= filler
            total += fluid.step_cost(load, bounds, int(filler), -1)
        return total

    def test_carries_filler_over_the_borders_between(self) -> None:
        window = window_of([300], [0], [10, 10, 10, 10])
        window.carry[:] = [0, 5, -5, 0, 0]
        assert moves_between(window, 0, 2, 3) == (8 + 2) - (5 + 5)
        assert moves_between(window, 2, 0, 3) == (2 + 8) - (5 + 5)
        assert moves_between(window, 1, 3, 7) == (2 + 7) - (5 + 0)


def moves_between(window: moves.Window, step: int, to: int, change: int) -> int:
    return int(annealing.carried(window, step, to, change))


class TestGroups:
    def test_are_of_like_pieces_that_arrive_together(self) -> None:
        window = window_of([900, 890, 410, 400], [1, 1, 0, 0], [2000, 2000])
        bounds = load_of([0] * 4, [0] * 4, 4000)[1]
        seen = groups.grouped(window, bounds, 2, window.filler)
        assert seen.window.tokens.tolist() == [895, 405]
        assert seen.window.arrival.tolist() == [1, 0]
        assert seen.window.filler.tolist() == [1000, 1000]
        assert seen.bounds.num == 2
        assert seen.group_of.tolist() == [0, 0, 1, 1]

    @given(windows(), st.sampled_from([2, 4]), st.integers(0, 100))
    @settings(max_examples=60, deadline=None)
    def test_spread_out_keep_filler_and_displacement_bound(
        self, window: moves.Window, group: int, turn: int
    ) -> None:
        bounds = self.bounds()
        seen = groups.grouped(window, bounds, group, window.filler)
        steps = len(window.filler)
        seen.window.step[:] = (seen.window.step + turn) % steps
        found = groups.spread_out(seen, window, bounds, window.filler)
        assert found.filler.sum() == window.filler.sum()
        assert found.filler.min() >= 0
        assert np.abs(found.step - found.arrival).max() <= bounds.max_displacement
        np.testing.assert_array_equal(np.diff(found.carry), window.filler - found.filler)

    def test_spread_out_move_the_filler_that_has_no_room(self) -> None:
        window = window_of([1250] * 8, [0] * 8, [2000, 2000])
        seen = groups.grouped(window, self.bounds(), 2, window.filler)
        assert seen.window.filler.tolist() == [0, 2000]
        seen.window.step[:] = 0
        found = groups.spread_out(seen, window, self.bounds(), window.filler)
        assert found.step.tolist() == [0] * 8
        assert found.filler.tolist() == [0, 4000]
        assert found.carry.tolist() == [0, 2000, 0]

    def bounds(self) -> fluid.Bounds:
        return load_of([0] * 4, [0] * 4, 2500)[1]._replace(max_displacement=2)
