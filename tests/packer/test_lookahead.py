"""What `lookahead` does: like meets like, never worse than `reorder`, within its budget."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings

from packer.lengths import fig3_lengths
from packer.measures import Balance, BalanceMeter
from packer.packing import lookahead
from packer.packing.config import PackingConfig
from packer.packing.packer import PackingError
from packer.packing.rivals import all_alike
from packer.packing.search import window
from packer.packing.search.objective import Merit, MeritMeter
from packer.packing.whole import Packing, pack
from packer.plan import Pieces, Steps
from packer.schedule import ONE_RANK, Schedule
from packer.simulate import cut_lengths
from packer.workload import Workload
from tests.packer.small_plans import SQUARE
from tests.strategies import Case, cases

FIG3 = Workload(crossover=47_100)
SEEN: Counter[str] = Counter()
"""How often a rival had a plan to be compared with."""


def balance(packing: Packing, workload: Workload, schedule: Schedule = ONE_RANK) -> Balance:
    meter = BalanceMeter(packing.config, schedule=schedule)
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
            if rival is None or (policy == "wlb" and all_alike(case.config)):
                continue
            if policy == "wlb" and rival.displacement_mean > case.config.mean_displacement:
                continue
            if policy == "wlb" and not case.config.thresholds:
                continue
            assert found is not None
            assert found.cost <= rival.cost
            SEEN[policy] += 1

    def test_were_compared_often_enough(self) -> None:
        """Runs after the property above; each rival had a plan in many of its cases."""
        if SEEN:  # not where this test runs alone
            assert min(SEEN["reorder"], SEEN["wlb"]) >= 20

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

    def test_stay_as_they_are_where_a_search_makes_them_no_faster(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        pieces = cut_lengths(fig3_lengths(9_000, seed=0), 131_072)
        config = PackingConfig(num_micro_batches=4, context_length=131_072, max_tokens=163_840)
        steps = pack("reorder", pieces, config, FIG3).steps
        assert steps is not None

        def as_they_are(steps: Steps, *_: object) -> np.ndarray:
            order = np.argsort(steps.pieces.position)
            return steps.piece_step[order]

        monkeypatch.setattr(lookahead, "search_window", as_they_are)
        assert lookahead.improved(steps, config, FIG3) is steps
        monkeypatch.setattr(lookahead, "search_window", lambda *_: None)
        assert lookahead.improved(steps, config, FIG3) is steps

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


def test_effort_is_as_configured() -> None:
    bounds = {"num_micro_batches": 4, "context_length": 8, "max_tokens": 8}
    assert window.moves_per_piece(PackingConfig(**bounds)) == window.MOVES
    assert window.moves_per_piece(PackingConfig(**bounds, moves_per_piece=7)) == 7
    with pytest.raises(ValueError, match="moves_per_piece is 100000"):
        PackingConfig(**bounds, moves_per_piece=100_000)
