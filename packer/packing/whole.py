"""A stream that is there whole: packed, with a lower intake where steps cannot hold theirs."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar

from packer.packing.backlog import Solved
from packer.packing.config import PackingConfig
from packer.packing.packer import IntakeTooLarge, Packer, PackingError
from packer.packing.rivals import best_of_rivals
from packer.packing.search.objective import Merit, MeritMeter
from packer.plan import Pieces, Steps
from packer.workload import Workload

MAX_RESTARTS = 64
"""How often the intake is lowered before planning gives up."""

Plan = TypeVar("Plan")

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Packing:
    """A whole stream, packed."""

    steps: Steps | None
    """None where the stream is less than a step."""
    tail: Pieces
    """What no step holds, in stream order."""
    config: PackingConfig
    """The configuration with the intake really used."""
    policy: str
    """Which made it: the one asked for, or one that `lookahead` was no better than."""
    solved: tuple[Solved, ...] = ()
    """As in `Filled`."""


def pack(policy: str, pieces: Pieces, config: PackingConfig, workload: Workload) -> Packing:
    """Pack a whole stream; where steps cannot hold the intake, lower it and begin again.

    `lookahead` is compared with `reorder`, and with `wlb` where thresholds are given.

    Raises:
        PackingError: unknown policy, or no plan within the bounds.
        ValueError: pieces that are no stream.
    """

    def plan(policy: str, config: PackingConfig) -> Packing:
        def attempt(bounds: PackingConfig) -> Packing:
            packer = Packer(policy, bounds, workload)
            steps = packer.push(pieces, final=True)
            return Packing(
                steps=steps,
                tail=packer.tail,
                config=bounds,
                policy=policy,
                solved=packer.solved,
            )

        return with_lower_intake(config, attempt)

    def measured(policy: str, config: PackingConfig) -> tuple[Packing, Merit | None]:
        packing = plan(policy, config)
        meter = MeritMeter(packing.config)
        if packing.steps is not None:
            meter.add(packing.steps)
        return packing, meter.result()

    def worth(policy: str, config: PackingConfig) -> Merit | None:
        try:
            return measured(policy, config)[1]
        except PackingError:
            return None

    if policy == "lookahead":
        return best_of_rivals(config, measured, worth)
    return plan(policy, config)


def with_lower_intake(config: PackingConfig, attempt: Callable[[PackingConfig], Plan]) -> Plan:
    """Plan, and where steps cannot hold the intake, lower it and begin again.

    Args:
        config: the bounds to begin with.
        attempt: plans the whole stream from its start under the bounds given.

    Raises:
        PackingError: no plan within the bounds.
    """
    for _ in range(MAX_RESTARTS):
        try:
            return attempt(config)
        except IntakeTooLarge as error:
            log.warning("a step takes in fewer stream tokens than N * S: %s", error)
            config = replace(config, intake_tokens=error.sustainable)
    raise PackingError(
        f"no intake found at which steps keep max_displacement {config.max_displacement}; the last "
        f"tried was {config.intake_tokens} tokens; raise max_displacement, max_tokens "
        f"{config.max_tokens} or max_pieces {config.max_pieces}"
    )
