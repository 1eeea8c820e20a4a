"""What `lookahead` does: like meets like, never worse than `reorder`, within its budget."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packer.lengths import fig3_lengths
from packer.measures import Balance, BalanceMeter
from packer.packing import kernels_fluid, lookahead
from packer.packing.packer import PackingError
from packer.packing.whole import Packing, pack
from packer.plan import PackingConfig, Pieces
from packer.simulate import cut_lengths
from packer.workload import SCALE, Workload
from tests.strategies import Case, cases

SQUARE = Workload(crossover=1)
FIG3 = Workload(crossover=47_100)


def balance(packing: Packing, workload: Workload) -> Balance:
    meter = BalanceMeter(packing.config, workload)
    assert packing.steps is not None
    meter.add(packing.steps)
    return meter.result()


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
    @settings(max_examples=60, deadline=None, derandomize=True)
    def test_are_never_worse_than_those_of_reorder_and_hold_the_same_pieces(
        self, case: Case
    ) -> None:
        try:
            before = pack("reorder", case.pieces, case.config, case.workload)
            after = pack("lookahead", case.pieces, before.config, case.workload)
        except PackingError:
            return
        np.testing.assert_array_equal(after.tail.position, before.tail.position)
        if before.steps is None or after.steps is None:
            assert before.steps is after.steps
            return
        ours, theirs = balance(after, case.workload), balance(before, case.workload)
        assert ours.imbalance_degree <= theirs.imbalance_degree
        most = max(case.config.mean_displacement, theirs.displacement_mean)
        assert ours.displacement_mean <= most + 1e-12

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
    work: list[int], tokens: list[int], max_tokens: int
) -> tuple[kernels_fluid.Load, kernels_fluid.Bounds]:
    bounds = kernels_fluid.Bounds(
        num=len(work),
        max_tokens=max_tokens,
        max_displacement=16,
        filler_rate=float(SCALE),
        budget=0.0,
        token_work=float(SCALE),
    )
    load = kernels_fluid.Load(np.array(work, np.float64), np.array(tokens, np.int64))
    return load, bounds


def test_effort_is_as_configured_or_falls_with_the_number_of_micro_batches() -> None:
    def moves(**settings: int) -> int:
        return lookahead.moves_per_piece(
            PackingConfig(context_length=8, max_tokens=8, **settings)  # pyright: ignore
        )

    assert moves(num_micro_batches=4) == moves(num_micro_batches=64) == 800
    assert moves(num_micro_batches=256) == 200
    assert moves(num_micro_batches=4, moves_per_piece=7) == 7
