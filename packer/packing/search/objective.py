"""What `lookahead` makes small: steps' time on the pipeline's clock, and tokens out of bands."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from packer.clock import Clock
from packer.orders import AUTO
from packer.packing.config import PackingConfig
from packer.plan import Int64, Steps


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """Time of a step: sums of micro-batches a rank, and what the heaviest one adds.

    A rank's micro-batches pass through the pipeline's stages in turn; with equal stages that takes
    their sum and (pp_size - 1) / virtual_stages times the heaviest (a proportionate flow shop).
    The simulator (`packer.schedule`) has the time itself; a search needs one that costs nothing.
    """

    dp_size: int
    """Ranks; N where only the heaviest micro-batch of all counts."""
    bubble: float
    """(pp_size - 1) / virtual_stages."""
    lockstep: bool

    @classmethod
    def of(cls, config: PackingConfig) -> Objective:
        schedule = config.schedule
        if schedule is None:
            return cls(dp_size=config.num_micro_batches, bubble=0.0, lockstep=False)
        return cls(
            dp_size=schedule.dp_size,
            bubble=(schedule.pp_size - 1) / schedule.virtual_stages,
            lockstep=schedule.coupling == "lockstep",
        )

    def times(self, work: Int64) -> np.ndarray:
        """Time of each step, in the unit of its work: even micro-batches cost what they weigh.

        What `fluid.step_time` is in the search.

        Args:
            work: of each slot, falling inside a step, (steps, num_micro_batches).

        Returns:
            float64 (steps,).
        """
        num = work.shape[1]
        by_index = work.reshape(len(work), -1, self.dp_size)  # (steps, index, rank)
        if self.lockstep:
            slowest = by_index[:, :, 0].sum(axis=1) + self.bubble * work[:, 0]
        else:
            dealt = by_index.copy()
            dealt[:, 1::2] = by_index[:, 1::2, ::-1]
            slowest = (dealt.sum(axis=1) + self.bubble * by_index[:, 0]).max(axis=1)
        return slowest * num / (num // self.dp_size + self.bubble)

    def cost(self, steps: Steps, config: PackingConfig) -> tuple[int, float]:
        """What a search makes small: tokens out of the bands, then the time of all steps."""
        times = self.times(steps.row_workload.reshape(steps.num_steps, -1))
        return outside_bands(steps, config), float(times.sum())


def band_of(config: PackingConfig) -> tuple[int, int]:
    """Fewest and most tokens of a step."""
    num = config.num_micro_batches
    if not config.token_band:
        return 0, num * config.max_tokens
    slack = int(config.intake_tokens * config.token_band)
    return config.intake_tokens - slack, config.intake_tokens + slack


def source_tokens(
    step: Int64, source: Int64, tokens: Int64, num_steps: int, num_sources: int
) -> Int64:
    """Tokens of each source in each step, (steps, sources).

    Args:
        step: of each piece, from 0, (pieces,).
        source: of each piece, from 0, (pieces,).
        tokens: of each piece, (pieces,).
        num_steps: steps.
        num_sources: sources.
    """
    held = np.zeros(num_steps * num_sources, np.int64)
    np.add.at(held, step * num_sources + source, tokens)
    return held.reshape(num_steps, num_sources)


def outside_bands(steps: Steps, config: PackingConfig) -> int:
    """Tokens by which steps are out of their bands."""
    least, most = band_of(config)
    held = steps.row_tokens.reshape(steps.num_steps, -1).sum(axis=1)
    outside = int(np.maximum(0, np.maximum(least - held, held - most)).sum())
    if config.source_band:
        pieces = steps.pieces
        by_source = source_tokens(
            steps.piece_step - steps.first_step,
            pieces.source,
            pieces.tokens,
            steps.num_steps,
            int(pieces.source.max()) + 1,
        )
        expected = held[:, None] * (by_source.sum(axis=0) / held.sum())
        beyond = np.abs(by_source - expected) - config.source_band * config.intake_tokens
        outside += int(np.maximum(0, beyond).sum())
    return outside


@dataclass(frozen=True, slots=True, kw_only=True)
class Merit:
    """What a plan is worth by the objective of `lookahead`."""

    outside: float
    """Tokens out of their bands, a token."""
    time: float
    """A token: of all steps under their best order, or of their heaviest micro-batches; to be
    compared under one configuration only."""
    displacement_mean: float
    """Token-weighted, in steps."""

    @property
    def cost(self) -> tuple[float, float]:
        """What is to be small: tokens out of the bands, then time."""
        return self.outside, self.time


class MeritMeter:
    """Measures a plan, window by window, exactly: on the simulator's clock where time counts.

    Args:
        config: what is packed under.
    """

    def __init__(self, config: PackingConfig) -> None:
        self._config = config
        self._clock = None
        if config.schedule is not None:
            self._clock = Clock(config.schedule, config.num_micro_batches, AUTO)
        self._tokens = self._outside = self._displacement = self._maxima = 0

    def add(self, steps: Steps) -> None:
        """Count some more steps."""
        work = steps.row_workload.reshape(steps.num_steps, -1)
        moved = steps.displacement(self._config.intake_tokens)
        self._tokens += int(steps.pieces.tokens.sum())
        self._displacement += int((moved * steps.pieces.tokens).sum())
        self._outside += outside_bands(steps, self._config)
        self._maxima += int(work[:, 0].sum())
        if self._clock is not None:
            self._clock.add(work, steps.row_tokens.reshape(work.shape))

    def result(self) -> Merit | None:
        """What the steps so far are worth; None where there are none."""
        if not self._tokens:
            return None
        time = self._maxima if self._clock is None else self._clock.time
        return Merit(
            outside=self._outside / self._tokens,
            time=time / self._tokens,
            displacement_mean=self._displacement / self._tokens,
        )
