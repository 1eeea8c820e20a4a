"""`lookahead` is never worse than what it could have been: `reorder`'s plan, or `wlb`'s.

The simpler policies cost a fiftieth of it, so their plans are measured beside it; where one that
keeps the same bounds is better by the objective, that one is the plan. It happens where pieces
leave a search nothing to do, and where its effort is set very low.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from packer.packing.search.objective import Objective, outside_bands, time_of
from packer.plan import PackingConfig, Steps

Plan = TypeVar("Plan")
SLACK = 256
"""Of S_max, the part that a search needs free: pieces that are moved never fill exactly."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Merit:
    """What a plan is worth by the objective of `lookahead`."""

    outside: float
    """Tokens out of their bands, a token."""
    time: float
    """Of all steps, a token, in 1/256 of a linear-token equivalent."""
    displacement_mean: float
    """Token-weighted, in steps."""


class MeritMeter:
    """Measures a plan, window by window.

    Args:
        config: what is packed under.
    """

    def __init__(self, config: PackingConfig) -> None:
        self._config = config
        self._objective = Objective.of(config)
        self._tokens = self._outside = self._displacement = 0
        self._time = 0.0

    def add(self, steps: Steps) -> None:
        """Count some more steps."""
        moved = np.abs(steps.piece_step - steps.pieces.position // self._config.intake_tokens)
        self._tokens += int(steps.pieces.tokens.sum())
        self._displacement += int((moved * steps.pieces.tokens).sum())
        self._outside += outside_bands(steps, self._config)
        self._time += time_of(steps, self._objective)

    def result(self) -> Merit | None:
        """What the steps so far are worth; None where there are none."""
        if not self._tokens:
            return None
        return Merit(
            outside=self._outside / self._tokens,
            time=self._time / self._tokens,
            displacement_mean=self._displacement / self._tokens,
        )


def with_room(config: PackingConfig) -> PackingConfig:
    """The bounds with an intake that leaves a search some room in micro-batches."""
    num, most = config.num_micro_batches, config.max_tokens
    return replace(
        config, intake_tokens=max(1, min(config.intake_tokens, num * (most - most // SLACK)))
    )


def best_of_rivals(
    config: PackingConfig,
    plan: Callable[[str, PackingConfig], tuple[Plan, Merit | None]],
    measure: Callable[[str, PackingConfig], Merit | None],
) -> Plan:
    """The plan of `lookahead`, or that of a simpler policy where it is better.

    Args:
        config: the bounds; with thresholds `wlb` is a rival too.
        plan: plans with a policy under bounds.
        measure: what such a plan would be worth; None where there is none.
    """
    rivals = ("reorder", "wlb") if config.thresholds else ("reorder",)
    worth = {policy: measure(policy, config) for policy in rivals}
    best, merit = plan("lookahead", with_room(config))
    chosen = None
    for policy, rival in worth.items():
        if rival is None or merit is None:
            continue
        if policy != "reorder" and rival.displacement_mean > config.mean_displacement:
            continue
        if (rival.outside, rival.time) < (merit.outside, merit.time):
            chosen, merit = policy, rival
    return best if chosen is None else plan(chosen, config)[0]
