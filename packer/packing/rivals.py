"""`lookahead` is never worse than what it could have been: `reorder`'s plan, or `wlb`'s.

The simpler policies cost a fiftieth of it, so their plans are measured beside it; where one that
keeps the same bounds is better by the objective, that one is the plan. It happens where a search
has nothing to do, where its effort is very low, and where light micro-batches at a pipeline's ends
make an uneven step faster than an even one, which the search does not know.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from packer.packing.config import PackingConfig
from packer.packing.packer import PackingError
from packer.packing.search.objective import Merit

Plan = TypeVar("Plan")
SLACK = 256
"""Of S_max, the part that a search needs free: pieces that are moved never fill exactly."""


def leaving_slack(config: PackingConfig) -> PackingConfig:
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

    Raises:
        PackingError: none of them has a plan within the bounds.
    """
    rivals = ("reorder", "wlb") if config.thresholds and not all_alike(config) else ("reorder",)
    worth = {policy: measure(policy, config) for policy in rivals}
    reorder = worth["reorder"]
    most = max(config.mean_displacement, reorder.displacement_mean if reorder else 0.0)
    found: Plan | None = None
    merit: Merit | None = None
    refused: PackingError | None = None
    for bounds in dict.fromkeys((leaving_slack(config), config)):
        try:
            found, merit = plan("lookahead", bounds)
        except PackingError as error:
            found, merit, refused = None, None, error  # what an earlier attempt wrote is gone
            continue
        if merit is None or merit.displacement_mean <= most:
            break
    if merit is not None and merit.displacement_mean > most:
        merit = None
    chosen = None
    for policy, rival in worth.items():
        if rival is None or (policy != "reorder" and rival.displacement_mean > most):
            continue
        if merit is None or rival.cost < merit.cost:
            chosen, merit = policy, rival
    if chosen is not None:
        return plan(chosen, config)[0]
    if found is None:
        assert refused is not None
        raise refused
    return found


def all_alike(config: PackingConfig) -> bool:
    """Whether steps take as long whatever the plan: one rank runs all micro-batches in turn."""
    schedule = config.schedule
    return schedule is not None and schedule.dp_size == schedule.pp_size == 1
