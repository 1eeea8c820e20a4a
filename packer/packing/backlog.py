"""What a policy knows between two chunks of the stream: small, explicit, and all of its state."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol

import numpy as np

from packer.packing.config import PackingConfig
from packer.plan import Int64, Pieces, Steps
from packer.workload import Workload


class Stop(IntEnum):
    """Why a policy stopped making steps."""

    MORE = 0
    """What is at hand is less than a step, or the next step depends on what follows it."""
    LAG = 1
    """Intake fell behind emission: steps hold less than A tokens."""
    LATE = 2
    """A piece would run more than `max_displacement` steps after its arrival."""
    EARLY = 3
    """A piece would run more than `max_displacement` steps before its arrival."""
    EMPTY = 4
    """A micro-batch would be empty; only where a policy has no rule against it."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Backlog:
    """Pieces that no step holds yet, and where the policy is.

    `pieces` are ascending by position: first those taken in, then those not yet. Of the first,
    `hand` holds those that the next step places if it can and `queued` the waiting outliers.
    """

    pieces: Pieces
    stream_tokens: int = 0
    """Tokens of the stream so far, placed or not."""
    num_taken: int = 0
    """How many of `pieces` are taken in."""
    hand: Int64
    """Indices into `pieces`, in the policy's own order."""
    queued: Int64
    """Indices into `pieces`, ascending."""
    step: int = 0
    """The next step, counted from the segment's first."""
    intake: int = 0
    """The next arrival to take in; behind `step` where steps hold less than they should."""
    window_steps: int = 0
    """Steps emitted since intake last kept pace."""
    window_tokens: int = 0
    """Tokens that those steps hold."""

    @classmethod
    def start(cls) -> Backlog:
        nothing = np.empty(0, np.int64)
        return cls(pieces=Pieces.empty(), hand=nothing, queued=nothing)


@dataclass(frozen=True, slots=True, kw_only=True)
class Solved:
    """How a solver fared with a window."""

    seconds: float
    gap: float
    """Between the result and the bound, relative to the result."""
    at_limit: bool
    """Time was over before the gap was closed."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Filled:
    """What a policy made of a backlog."""

    steps: Steps | None
    """The steps made, numbered from the segment's first; None if none."""
    backlog: Backlog
    stop: Stop
    again: bool = False
    """There may be more steps in the backlog: call once more."""
    solved: tuple[Solved, ...] = ()
    """A window each, of a policy that uses a solver."""


Policy = Callable[[Backlog, PackingConfig, Workload, bool], Filled]
"""Makes the whole steps that a backlog allows; the flag says that the stream ends with it."""


class Improver(Protocol):
    """Makes better steps of those that one call of a policy made: the same pieces, as many steps.

    It sees nothing else, so the steps of one call can be improved beside those of another.
    """

    def __call__(self, steps: Steps, config: PackingConfig, workload: Workload) -> Steps: ...


def lag_limit(config: PackingConfig) -> int:
    """Steps that intake may fall behind before it counts as too large: a quarter of the bound."""
    return max(1, config.max_displacement // 4)


def release_age(config: PackingConfig) -> int:
    """Steps after its arrival at which a piece waits for nothing and goes first.

    A quarter of the displacement bound before it, at least one step, so that there is time where
    many pieces come of age at once.
    """
    return config.max_displacement - max(1, config.max_displacement // 4)
