"""What stands beside a search: the simpler policies' plans, and which bound is in the way."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from packer.packing.binding import BindingMeter
from packer.packing.config import PackingConfig
from packer.packing.packer import PackingError
from packer.packing.rivals import best_of_rivals, leaving_slack
from packer.packing.search.objective import Merit
from packer.packing.whole import pack
from packer.plan import Pieces, Steps
from packer.schedule import Schedule
from tests.packer.small_plans import SQUARE


class TestBinding:
    def meter(self, lengths: list[int], **bounds: Any) -> BindingMeter:
        config = PackingConfig(context_length=16, **bounds)
        packing = pack("reorder", Pieces.from_lengths(np.array(lengths)), config, SQUARE)
        assert packing.steps is not None
        meter = BindingMeter(packing.config, "reorder")
        meter.add(packing.steps)
        return meter

    def test_is_the_memory_where_light_micro_batches_are_full(self) -> None:
        meter = self.meter([16, *[1] * 16], num_micro_batches=2, max_tokens=16)
        assert meter.binding() == ["max_tokens"]

    def test_is_the_number_of_pieces_where_that_is_reached(self) -> None:
        bounds = {"max_pieces": 4, "intake_tokens": 20}
        meter = self.meter([16, *[1] * 4], num_micro_batches=2, max_tokens=32, **bounds)
        assert meter.binding() == ["max_pieces"]

    def test_of_a_band_and_a_budget_binds_the_policy_that_has_them(self) -> None:
        config = PackingConfig(
            num_micro_batches=2,
            context_length=16,
            max_tokens=64,
            intake_tokens=20,
            token_band=0.1,
            mean_displacement=0.5,
        )
        steps = pack("reorder", Pieces.from_lengths(np.array([16, 4])), config, SQUARE).steps
        assert steps is not None
        late = replace(steps, first_step=1)  # a step late, with the most tokens of the band
        assert self.blamed(replace(late, pieces=steps.pieces), config, "lookahead") == {
            "mean_displacement": 1.0
        }
        assert self.blamed(late, config, "reorder") == {}
        full = pack("reorder", Pieces.from_lengths(np.array([16, 6])), config, SQUARE).steps
        assert full is not None
        assert self.blamed(full, config, "lookahead") == {"token_band": 1.0}

    def blamed(self, steps: Steps, config: PackingConfig, policy: str) -> dict[str, float]:
        meter = BindingMeter(config, policy)
        meter.add(steps)
        return meter.shares()

    def test_is_none_where_micro_batches_are_even(self) -> None:
        assert self.meter([16, 16], num_micro_batches=2, max_tokens=16).binding() == []


class TestRivals:
    CONFIG = PackingConfig(
        num_micro_batches=2, context_length=8, max_tokens=10, thresholds=(4,), mean_displacement=0.5
    )

    def chosen(
        self,
        config: PackingConfig = CONFIG,
        *,
        refused: bool = False,
        **merits: tuple[float, float, float] | None,
    ) -> str:
        """Which of the policies is taken; of each: tokens outside, time, displacement."""

        def worth(policy: str, config: PackingConfig) -> Merit | None:
            given = merits.get(policy)
            if given is None:
                return None
            outside, time, displacement = given
            return Merit(outside=outside, time=time, displacement_mean=displacement)

        def plan(policy: str, config: PackingConfig) -> tuple[str, Merit | None]:
            if refused and policy == "lookahead":
                raise PackingError("too tight")
            return policy, worth(policy, config)

        return best_of_rivals(config, plan, worth)

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

    def test_where_it_has_no_plan_a_rival_s_is_taken(self) -> None:
        merits = {"reorder": (0, 1.2, 0), "wlb": (0, 1.1, 0.4)}
        assert self.chosen(**merits, refused=True) == "wlb"
        with pytest.raises(PackingError, match="too tight"):
            self.chosen(refused=True)

    def test_where_it_spends_more_than_the_budget_a_rival_s_is_taken(self) -> None:
        assert self.chosen(lookahead=(0, 1.0, 0.6), reorder=(0, 1.2, 0)) == "reorder"
        assert self.chosen(lookahead=(0, 1.0, 0.6), reorder=(0, 1.2, 0.7)) == "lookahead"

    def test_for_one_rank_wlb_has_nothing_to_offer(self) -> None:
        merits = {"lookahead": (0, 1.0, 0.0), "reorder": (0, 1.0, 0), "wlb": (0, 0.99, 0.4)}
        one = replace(self.CONFIG, schedule=Schedule())
        assert self.chosen(one, **merits) == "lookahead"

    def test_a_search_gets_some_room(self) -> None:
        tight = PackingConfig(num_micro_batches=2, context_length=512, max_tokens=512)
        assert leaving_slack(tight).intake_tokens == 2 * 510
        assert leaving_slack(replace(tight, max_tokens=640)).intake_tokens == 2 * 512
