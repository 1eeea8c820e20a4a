"""What a plan is worth: balance, displacement, evenness, predicted time.

Everything is a sum over steps, so that a run of any length is measured in windows, and every sum is
one of integers, so that the result does not depend on the windows.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass

import numpy as np

from packer.clock import Clock
from packer.packing.config import PackingConfig
from packer.plan import Int64, Steps
from packer.schedule import ONE_RANK, Schedule
from packer.workload import SCALE

SHARE_SCALE = 1 << 20
"""Shares and ratios are summed as integers in this fraction of one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Balance:
    """The measures of a run.

    Ratios are 1.0 at best, but for `schedule_time`; variations and displacements 0.0.
    """

    steps: int
    num_micro_batches: int
    placed_tokens: int
    placed_pieces: int
    total_workload: int
    """In 1/256 of a linear-token equivalent."""
    imbalance_degree: float
    """Sum over steps of the heaviest micro-batch over the sum of the mean ones: time."""
    excess: float
    """Imbalance degree less one."""
    imbalance_degree_mean: float
    """Mean over steps of max over mean: what papers print."""
    sum_of_maxima_per_token: float
    """Linear-token equivalents of the steps' heaviest micro-batches per placed token; with N
    micro-batches at work a perfect plan has the mean work of a token over N."""
    displacement_mean: float
    """Token-weighted mean of |step - arrival|, in steps."""
    displacement_max: int
    delay_mean: float
    """Token-weighted mean of step - arrival: positive where pieces run late."""
    tokens_per_step_mean: float
    tokens_per_step_cv: float
    """Standard deviation over mean, as in every `_cv`."""
    tokens_per_step_min: int
    tokens_per_step_max: int
    long_share_cv: float
    """Of a step's share of tokens in pieces longer than S / 2."""
    source_share_cv: float
    """Of a step's share of a source's tokens, at the source where it is largest."""
    max_tokens_seen: int
    """Of a micro-batch."""
    max_pieces_seen: int
    """Of a micro-batch."""
    dp_size: int
    pp_size: int
    virtual_stages: int
    coupling: str
    lockstep_time: float
    """Sum over micro-batch index of the slowest of dp_size ranks, over the same work spread
    equally."""
    micro_batch_order: str
    """Rule by which ranks run their micro-batches (`packer.orders`)."""
    schedule_time: float
    """Simulated step of the schedule, over that of N equal micro-batches of the step's mean work;
    below 1.0 where light micro-batches fill and drain the pipeline."""
    schedule_time_per_token: float
    """`schedule_time` times the work of a placed token, in linear-token equivalents: what policies
    can be compared by, since one that cuts documents has less work."""

    def as_dict(self) -> dict[str, int | float | str]:
        return asdict(self)


class BalanceMeter:
    """Measures the steps of one segment, window by window.

    Args:
        config: the bounds they were packed under; its intake decides arrivals.
        schedule: what times are computed for; its dp_size divides the number of micro-batches.
        order: rule by which ranks run their micro-batches, or "auto" for the one of least time.
        num_sources: sources that pieces may come from.
        first_step: number of the segment's first step.
    """

    def __init__(
        self,
        config: PackingConfig,
        *,
        schedule: Schedule = ONE_RANK,
        order: str = "identity",
        num_sources: int = 1,
        first_step: int = 0,
    ) -> None:
        self._config, self._schedule = config, schedule
        self._clock = Clock(schedule, config.num_micro_batches, order)
        self._first_step = first_step
        self._sums = _Sums(num_sources)

    def add(self, steps: Steps) -> None:
        """Count some more steps of the segment, in any order."""
        num = self._config.num_micro_batches
        if steps.num_micro_batches != num:
            raise ValueError(f"steps of {steps.num_micro_batches} micro-batches, expected {num}")
        work = steps.row_workload.reshape(-1, num)  # (steps, num)
        self._sums.add_work(work, self._schedule.dp_size)
        self._clock.add(work, steps.row_tokens.reshape(-1, num))
        self._add_tokens(steps)
        self._add_displacement(steps)

    def result(self) -> Balance:
        """The measures of all steps so far.

        Raises:
            ValueError: no step was added.
        """
        if not self._sums.steps:
            raise ValueError("no step to measure; add at least one")
        return self._sums.balance(self._config.num_micro_batches, self._schedule, self._clock)

    def _add_tokens(self, steps: Steps) -> None:
        sums, num = self._sums, self._config.num_micro_batches
        tokens, row_tokens = steps.pieces.tokens, steps.row_tokens
        step = steps.piece_step - steps.first_step
        step_tokens = row_tokens.reshape(-1, num).sum(axis=1)  # (steps,)
        sums.tokens.add(step_tokens)
        sums.pieces += len(steps.pieces)
        sums.max_tokens = max(sums.max_tokens, int(row_tokens.max()))
        sums.max_pieces = max(sums.max_pieces, int(np.diff(steps.row_offsets).max()))
        is_long = 2 * tokens > self._config.context_length
        sums.long_share.add(_share(step, tokens * is_long, step_tokens))
        for source, share in enumerate(sums.source_shares):
            share.add(_share(step, tokens * (steps.pieces.source == source), step_tokens))

    def _add_displacement(self, steps: Steps) -> None:
        sums, tokens = self._sums, steps.pieces.tokens
        arrival = steps.pieces.position // self._config.intake_tokens
        delay = steps.piece_step - self._first_step - arrival
        sums.delay += int(np.dot(delay, tokens))
        sums.displacement += int(np.dot(np.abs(delay), tokens))
        sums.max_displacement = max(sums.max_displacement, int(np.abs(delay).max()))


class _Moments:
    """Count, sum, sum of squares, range; exact."""

    def __init__(self) -> None:
        self.count = self.total = self.squares = 0
        self.least, self.most = 0, 0

    def add(self, values: Int64) -> None:
        least, most = int(values.min()), int(values.max())
        self.least = min(self.least, least) if self.count else least
        self.most = max(self.most, most) if self.count else most
        self.count += len(values)
        self.total += int(values.sum())
        self.squares += sum(value * value for value in values.tolist())

    def cv(self) -> float:
        """Standard deviation of the population over the mean; 0 where all are 0."""
        variance = self.count * self.squares - self.total * self.total  # times count squared
        return math.sqrt(variance) / self.total if self.total else 0.0


class _Sums:
    """All that a meter remembers."""

    def __init__(self, num_sources: int) -> None:
        self.steps = self.pieces = 0
        self.maxima = self.total = self.ratios = 0
        self.lockstep = 0
        self.delay = self.displacement = self.max_displacement = 0
        self.max_tokens = self.max_pieces = 0
        self.tokens = _Moments()
        self.long_share = _Moments()
        self.source_shares = [_Moments() for _ in range(num_sources)]

    def add_work(self, work: Int64, dp_size: int) -> None:
        """Count workloads, (steps, num_micro_batches), slots in order."""
        maxima, totals = work.max(axis=1), work.sum(axis=1)
        self.steps += len(work)
        self.maxima += int(maxima.sum())
        self.total += int(totals.sum())
        pairs = zip(maxima.tolist(), totals.tolist(), strict=True)
        self.ratios += sum(most * work.shape[1] * SHARE_SCALE // total for most, total in pairs)
        by_index = work.reshape(len(work), -1, dp_size)  # (steps, index, rank)
        self.lockstep += int(by_index.max(axis=2).sum())

    def balance(self, num: int, schedule: Schedule, clock: Clock) -> Balance:
        tokens = self.tokens
        degree = self.maxima * num / self.total
        return Balance(
            steps=self.steps,
            num_micro_batches=num,
            placed_tokens=tokens.total,
            placed_pieces=self.pieces,
            total_workload=self.total,
            imbalance_degree=degree,
            excess=degree - 1,
            imbalance_degree_mean=self.ratios / SHARE_SCALE / self.steps,
            sum_of_maxima_per_token=self.maxima / SCALE / tokens.total,
            displacement_mean=self.displacement / tokens.total,
            displacement_max=self.max_displacement,
            delay_mean=self.delay / tokens.total,
            tokens_per_step_mean=tokens.total / self.steps,
            tokens_per_step_cv=tokens.cv(),
            tokens_per_step_min=tokens.least,
            tokens_per_step_max=tokens.most,
            long_share_cv=self.long_share.cv(),
            source_share_cv=max((share.cv() for share in self.source_shares), default=0.0),
            max_tokens_seen=self.max_tokens,
            max_pieces_seen=self.max_pieces,
            dp_size=schedule.dp_size,
            pp_size=schedule.pp_size,
            virtual_stages=schedule.virtual_stages,
            coupling=schedule.coupling,
            lockstep_time=self.lockstep * schedule.dp_size / self.total,
            micro_batch_order=clock.order,
            schedule_time=clock.ratio,
            schedule_time_per_token=clock.ratio * self.total / SCALE / tokens.total,
        )


def _share(step: Int64, tokens: Int64, step_tokens: Int64) -> Int64:
    """Share of some tokens in each step, in 1/SHARE_SCALE, (steps,).

    Args:
        step: of each piece, from 0, (pieces,), ascending.
        tokens: of each piece that count, (pieces,).
        step_tokens: all tokens of each step, (steps,).
    """
    starts = np.searchsorted(step, np.arange(len(step_tokens)))
    return np.add.reduceat(tokens, starts) * SHARE_SCALE // step_tokens
