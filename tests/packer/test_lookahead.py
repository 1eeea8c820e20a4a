"""What `lookahead` does: like meets like, never worse than `reorder`, within its budget."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packer.lengths import fig3_lengths
from packer.measures import Balance, BalanceMeter
from packer.packing import kernels_fluid, kernels_lookahead, kernels_settle, window
from packer.packing.binding import BindingMeter
from packer.packing.greedy import limits_of
from packer.packing.objective import Objective
from packer.packing.packer import PackingError
from packer.packing.rivals import Merit, MeritMeter, best_of_rivals, with_room
from packer.packing.whole import Packing, pack
from packer.plan import PackingConfig, Pieces, slot_of
from packer.schedule import ONE_RANK, Schedule
from packer.simulate import cut_lengths
from packer.workload import SCALE, Workload
from tests.strategies import Case, cases

SQUARE = Workload(crossover=1)
FIG3 = Workload(crossover=47_100)


def balance(packing: Packing, workload: Workload, schedule: Schedule = ONE_RANK) -> Balance:
    meter = BalanceMeter(packing.config, workload, schedule=schedule)
    assert packing.steps is not None
    meter.add(packing.steps)
    return meter.result()


def merit(policy: str, case: Case) -> Merit | None:
    """What a policy's plan is worth by look-ahead's objective; None where there is none."""
    try:
        packing = pack(policy, case.pieces, case.config, case.workload)
    except PackingError:
        return None
    meter = MeritMeter(packing.config)
    if packing.steps is not None:
        meter.add(packing.steps)
    return meter.result()


def step_tokens(packing: Packing) -> np.ndarray:
    """Tokens of each step."""
    assert packing.steps is not None
    return packing.steps.row_tokens.reshape(packing.steps.num_steps, -1).sum(axis=1)


def share_of_books(packing: Packing) -> np.ndarray:
    """Source 1's share of each step."""
    steps = packing.steps
    assert steps is not None
    books = steps.pieces.tokens * (steps.pieces.source == 1)
    return np.bincount(steps.piece_step, weights=books) / step_tokens(packing)


class TestSteps:
    def test_full_pieces_of_different_steps_meet_in_one(self) -> None:
        crumbs = [1] * 16
        arriving = [16, *crumbs, *crumbs, *crumbs[:12], 4, 16, *crumbs]  # two steps of 32, and more
        config = PackingConfig(
            num_micro_batches=2, context_length=16, max_tokens=20, mean_displacement=2.0
        )
        packing = pack("lookahead", Pieces.from_lengths(np.array(arriving)), config, SQUARE)
        steps = packing.steps
        assert steps is not None
        of_full = steps.piece_step[steps.pieces.tokens == 16]
        assert len(of_full) == 2
        assert of_full[0] == of_full[1]
        apart = pack("reorder", Pieces.from_lengths(np.array(arriving)), config, SQUARE)
        assert apart.steps is not None
        assert len(set(apart.steps.piece_step[apart.steps.pieces.tokens == 16].tolist())) == 2

    @pytest.mark.parametrize(("num_micro_batches", "most"), [(4, 0.055), (16, 0.120)])
    def test_balance_the_paper_s_lengths_within_a_quarter_more_than_s(
        self, num_micro_batches: int, most: float
    ) -> None:
        pieces = cut_lengths(fig3_lengths(9_000 * num_micro_batches, seed=0), 131_072)
        config = PackingConfig(
            num_micro_batches=num_micro_batches, context_length=131_072, max_tokens=163_840
        )
        found = balance(pack("lookahead", pieces, config, FIG3), FIG3)
        assert found.excess < most < balance(pack("reorder", pieces, config, FIG3), FIG3).excess
        assert found.displacement_mean <= 0.5

    @given(cases(max_pieces=80))
    @settings(max_examples=120, deadline=None, derandomize=True)
    def test_are_never_worse_than_those_of_reorder_and_wlb_within_the_same_bounds(
        self, case: Case
    ) -> None:
        found = merit("lookahead", case)
        for policy in ("reorder", "wlb"):
            rival = merit(policy, case)
            if rival is None or found is None:
                assert policy == "wlb" or found is rival
                continue
            if policy == "wlb" and rival.displacement_mean > case.config.mean_displacement:
                continue
            assert (found.outside, found.time) <= (rival.outside, rival.time * (1 + 1e-12))

    @given(cases(max_pieces=80))
    @settings(max_examples=60, deadline=None, derandomize=True)
    def test_spend_no_more_displacement_than_the_budget_where_reorder_did_not(
        self, case: Case
    ) -> None:
        found, base = merit("lookahead", case), merit("reorder", case)
        if found is not None and base is not None:
            most = max(case.config.mean_displacement, base.displacement_mean)
            assert found.displacement_mean <= most + 1e-12

    def test_hold_their_tokens_within_a_band(self) -> None:
        pieces = cut_lengths(fig3_lengths(9_000 * 4, seed=1), 131_072)
        bounds = {"num_micro_batches": 4, "context_length": 131_072, "max_tokens": 163_840}
        free, held = (
            step_tokens(pack("lookahead", pieces, PackingConfig(**bounds, token_band=band), FIG3))
            for band in (0.0, 0.05)
        )
        intake = 4 * 131_072
        assert np.abs(free - intake).max() > 0.2 * intake
        assert np.abs(held - intake)[:-32].max() <= 0.05 * intake

    def test_hold_each_source_within_a_band(self) -> None:
        rng = np.random.default_rng(5)
        lengths = np.where(rng.random(4_000) < 0.02, rng.integers(20_000, 32_768, 4_000), 400)
        pieces = cut_lengths(lengths, 32_768)
        pieces = replace(pieces, source=(pieces.tokens > 400).astype(np.int64))  # books, and crumbs
        bounds = {"num_micro_batches": 4, "context_length": 32_768, "max_tokens": 65_536}
        free, held = (
            share_of_books(
                pack(
                    "lookahead",
                    pieces,
                    PackingConfig(**bounds, token_band=0.1, source_band=b),
                    FIG3,
                )
            )
            for b in (0.0, 0.15)
        )
        assert np.ptp(held) < 0.4 < 0.6 < np.ptp(free)

    def test_gather_their_like_where_micro_batches_hold_no_more_than_the_window(self) -> None:
        pieces = cut_lengths(fig3_lengths(9_000 * 4, seed=0), 131_072)
        config = PackingConfig(num_micro_batches=4, context_length=131_072, max_tokens=131_072)
        found = balance(pack("lookahead", pieces, config, FIG3), FIG3)
        assert (
            found.excess < 0.15 < 0.5 < balance(pack("reorder", pieces, config, FIG3), FIG3).excess
        )

    def test_of_many_micro_batches_take_little_longer_than_even_ones(self) -> None:
        pieces = cut_lengths(fig3_lengths(190_000, seed=0), 131_072)
        schedule = Schedule(dp_size=8, pp_size=4)
        config = PackingConfig(
            num_micro_batches=64, context_length=131_072, max_tokens=163_840, schedule=schedule
        )
        found = balance(pack("lookahead", pieces, config, FIG3), FIG3, schedule)
        assert found.schedule_time < 1.055
        assert found.displacement_mean <= 0.5
        apart = balance(pack("reorder", pieces, config, FIG3), FIG3, schedule)
        assert apart.schedule_time > 1.3

    def test_stay_as_they_are_where_no_plan_is_faster(self) -> None:
        pieces = cut_lengths(fig3_lengths(9_000, seed=0), 131_072)
        config = PackingConfig(
            num_micro_batches=4, context_length=131_072, max_tokens=163_840, schedule=Schedule()
        )
        found = pack("lookahead", pieces, config, FIG3).steps
        before = pack("reorder", pieces, config, FIG3).steps
        assert found is not None
        assert before is not None
        np.testing.assert_array_equal(found.pieces.position, before.pieces.position)

    def test_of_a_window_do_not_depend_on_what_follows_it(self) -> None:
        pieces = cut_lengths(fig3_lengths(12_000, seed=3), 131_072)
        config = PackingConfig(
            num_micro_batches=4, context_length=131_072, max_tokens=163_840, window_steps=16
        )
        whole = pack("lookahead", pieces, config, FIG3).steps
        part = pack("lookahead", pieces.take(slice(0, 9_000)), config, FIG3).steps
        assert whole is not None
        assert part is not None
        shared = part.num_steps // 16 * 16
        assert shared >= 16
        np.testing.assert_array_equal(
            whole.take_steps(0, shared).pieces.position, part.take_steps(0, shared).pieces.position
        )


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
        found = kernels_fluid.step_cost(*load_of(work, tokens, most), filler, -1)
        level = water_level(work, room, filler, SCALE)
        assert found == pytest.approx(float(level) * len(work), rel=1e-9)

    def test_of_even_loads_is_the_same_under_every_norm(self) -> None:
        load = load_of([300, 300, 300], [1, 1, 1], 9)
        for power in (-1, 2, 6):
            assert kernels_fluid.step_cost(*load, 6, power) == pytest.approx(3 * (300 + 512))

    def test_falls_under_a_norm_when_heavy_pieces_gather(self) -> None:
        def both(heavy_here: int, heavy_there: int, power: int) -> float:
            steps = [[9_000] * k + [100] * (4 - k) for k in (heavy_here, heavy_there)]
            return sum(
                kernels_fluid.step_cost(*load_of(work, [1] * 4, 1), 0, power) for work in steps
            )

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
) -> tuple[kernels_fluid.Load, kernels_fluid.Bounds]:
    bounds = kernels_fluid.Bounds(
        num=len(work),
        max_tokens=max_tokens,
        max_displacement=16,
        filler_rate=float(SCALE),
        budget=0.0,
        token_work=float(SCALE),
        least_tokens=0,
        most_tokens=max_tokens * len(work),
        dp_size=dp_size or len(work),
        bubble=bubble,
        lockstep=lockstep,
    )
    load = kernels_fluid.Load(
        np.array(work, np.float64), np.array(tokens, np.int64), np.zeros(len(work))
    )
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
        assert kernels_fluid.step_cost(load, bounds, 0, -1) == pytest.approx(expected)

    def test_of_a_filled_step_counts_the_filler(self) -> None:
        load, bounds = load_of([5000, 100, 100, 100], [1, 1, 1, 1], 99, dp_size=2, bubble=1.0)
        # 6 tokens of 256 over the three light ones: 612 each; ranks 5000 + 612 and 612 + 612
        expected = (5000 + 612 + 5000) * 4 / 3
        assert kernels_fluid.step_cost(load, bounds, 6, -1) == pytest.approx(expected, rel=1e-3)


class TestFit:
    def test_moves_what_has_no_room_to_the_nearest_step_that_has(self) -> None:
        step = np.array([0, 0, 0, 0, 1])
        tokens = np.array([9, 9, 8, 7, 2])
        _, bounds = load_of([0, 0], [0, 0], 10)
        arrival = np.zeros(5, np.int64)
        assert kernels_fluid.make_fit(step, arrival, tokens, tokens * 1.0, bounds, 3)
        assert step.tolist() == [0, 0, 1, 1, 1]

    def test_fails_where_displacement_forbids_it(self) -> None:
        step, tokens = np.array([0, 0, 0]), np.array([9, 9, 8])
        _, bounds = load_of([0, 0], [0, 0], 10)
        near = bounds._replace(max_displacement=0)
        assert not kernels_fluid.make_fit(step, step.copy(), tokens, tokens * 1.0, near, 3)


class TestSettling:
    LIMITS = limits_of(PackingConfig(num_micro_batches=2, context_length=8, max_tokens=8), 1)

    def settle(self, tokens: list[int], step: list[int], steps: int) -> tuple[list[int], bool]:
        lengths = np.array(tokens)
        order = np.argsort(-lengths, kind="stable")
        row, _, whole = kernels_settle.settle(
            lengths, lengths, np.array(step), order, self.LIMITS, steps
        )
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


class TestBinding:
    def meter(self, lengths: list[int], **bounds: Any) -> BindingMeter:
        config = PackingConfig(context_length=16, **bounds)
        packing = pack("reorder", Pieces.from_lengths(np.array(lengths)), config, SQUARE)
        assert packing.steps is not None
        meter = BindingMeter(packing.config)
        meter.add(packing.steps)
        return meter

    def test_is_the_memory_where_light_micro_batches_are_full(self) -> None:
        meter = self.meter([16, *[1] * 16], num_micro_batches=2, max_tokens=16)
        assert meter.binding() == ["max_tokens"]

    def test_is_the_number_of_pieces_where_that_is_reached(self) -> None:
        bounds = {"max_pieces": 4, "intake_tokens": 20}
        meter = self.meter([16, *[1] * 4], num_micro_batches=2, max_tokens=32, **bounds)
        assert meter.binding() == ["max_pieces"]

    def test_is_none_where_micro_batches_are_even(self) -> None:
        assert self.meter([16, 16], num_micro_batches=2, max_tokens=16).binding() == []


class TestRivals:
    CONFIG = PackingConfig(
        num_micro_batches=2, context_length=8, max_tokens=10, thresholds=(4,), mean_displacement=0.5
    )

    def chosen(self, **merits: tuple[float, float, float] | None) -> str:
        """Which of the policies is taken; of each: tokens outside, time, displacement."""

        def worth(policy: str, config: PackingConfig) -> Merit | None:
            given = merits.get(policy)
            if given is None:
                return None
            outside, time, displacement = given
            return Merit(outside=outside, time=time, displacement_mean=displacement)

        return best_of_rivals(self.CONFIG, lambda name, c: (name, worth(name, c)), worth)

    def test_the_one_of_least_time_is_taken(self) -> None:
        assert self.chosen(lookahead=(0, 1.0, 0.4), reorder=(0, 1.2, 0), wlb=(0, 1.1, 0.4)) == (
            "lookahead"
        )
        assert self.chosen(lookahead=(0, 1.15, 0.4), reorder=(0, 1.2, 0), wlb=(0, 1.1, 0.4)) == (
            "wlb"
        )
        assert self.chosen(lookahead=(0, 1.3, 0.4), reorder=(0, 1.2, 0), wlb=None) == "reorder"

    def test_only_within_the_budget_of_displacement(self) -> None:
        merits = {"lookahead": (0, 1.15, 0.4), "reorder": (0, 1.2, 0), "wlb": (0, 1.1, 0.6)}
        assert self.chosen(**merits) == "lookahead"

    def test_fewer_tokens_out_of_the_bands_come_first(self) -> None:
        merits = {"lookahead": (0.01, 1.5, 0.4), "reorder": (0.2, 1.2, 0), "wlb": (0.3, 1.1, 0.4)}
        assert self.chosen(**merits) == "lookahead"

    def test_a_search_gets_some_room(self) -> None:
        tight = PackingConfig(num_micro_batches=2, context_length=512, max_tokens=512)
        assert with_room(tight).intake_tokens == 2 * 510
        assert with_room(replace(tight, max_tokens=640)).intake_tokens == 2 * 512


@pytest.mark.parametrize("other", [1, 2])
def test_what_an_exchange_takes_out_of_sources_bounds_is_counted_on_both_sides(other: int) -> None:
    """Piece 0 (source 0, 9 tokens) for one of the same source (5 tokens) or another one (4)."""
    zeros = np.zeros(3, np.int64)
    held = np.array([[9, 4], [5, 0]]) if other == 1 else np.array([[9, 0], [5, 4]])
    window = kernels_lookahead.Window(
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
    found = kernels_lookahead.sources_beyond(window, held, 0, other, 0, 1)
    assert found == outside(after) - outside(held)


def test_effort_is_as_configured() -> None:
    bounds = {"num_micro_batches": 4, "context_length": 8, "max_tokens": 8}
    assert window.moves_per_piece(PackingConfig(**bounds)) == window.MOVES
    assert window.moves_per_piece(PackingConfig(**bounds, moves_per_piece=7)) == 7
    with pytest.raises(ValueError, match="moves_per_piece is 100000"):
        PackingConfig(**bounds, moves_per_piece=100_000)
