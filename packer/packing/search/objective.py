"""What `lookahead` makes small: steps' time on the pipeline's clock, and tokens out of bands."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from packer.plan import Int64, PackingConfig, Steps


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

    @property
    def heaviest_counts(self) -> bool:
        """Whether a step is faster the lighter its heaviest micro-batch is."""
        return self.bubble > 0 or self.lockstep or self.dp_size > 1

    def times(self, work: Int64) -> np.ndarray:
        """Time of each step, in the unit of its work: even micro-batches cost what they weigh.

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


def time_of(steps: Steps, objective: Objective) -> float:
    """Time of all steps, in the unit of their work."""
    return float(objective.times(steps.row_workload.reshape(steps.num_steps, -1)).sum())


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
