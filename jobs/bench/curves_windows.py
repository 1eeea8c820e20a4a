"""What independent windows cost `lookahead`: the excess of steps beside a border and of others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import mean
from typing import Any

import numpy as np

from jobs.bench.curves_points import CONTEXT_LENGTH, WORKLOAD, lengths_of
from packer.packing.config import PackingConfig
from packer.packing.whole import pack
from packer.simulate import cut_lengths

BORDER = 4
"""Steps on either side of a border that are taken to feel it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Windowed:
    """Plans of `lookahead` for excess, at S_max 1.25 S, in windows of one size."""

    num_micro_batches: int
    steps: int
    window_steps: int

    def measure(self, seed: int) -> dict[str, float]:
        """Excess of all steps and of those inside windows, of one stream."""
        config = PackingConfig(
            num_micro_batches=self.num_micro_batches,
            context_length=CONTEXT_LENGTH,
            max_tokens=CONTEXT_LENGTH * 5 // 4,
            window_steps=self.window_steps,
        )
        tokens = self.steps * config.intake_tokens
        pieces = cut_lengths(lengths_of(tokens, seed), CONTEXT_LENGTH)
        stream = pieces.take(slice(0, int(np.searchsorted(pieces.position, tokens))))
        plan = pack("lookahead", stream, config, WORKLOAD).steps
        assert plan is not None
        work = plan.row_workload.reshape(-1, self.num_micro_batches)
        every, inside = excesses(work, self.window_steps)
        return {"excess": every, "excess_inside": inside}

    def row(self, place: int, runs: Sequence[dict[str, float]]) -> dict[str, Any]:
        """What is kept: means over the seeds."""
        return {
            "sweeps": {"windows": place},
            **asdict(self),
            **{name: float(f"{mean(run[name] for run in runs):.6g}") for name in runs[0]},
        }


def excesses(work: np.ndarray, window_steps: int) -> tuple[float, float]:
    """Excess of all steps, and of those inside windows; the stream's own ends are in neither.

    Args:
        work: of each micro-batch, (steps, N).
        window_steps: steps of a window; the last may have fewer.
    """
    step = np.arange(len(work))
    start = step // window_steps * window_steps
    end = np.minimum(start + window_steps, len(work))
    inside = np.minimum(step - start, end - 1 - step) >= BORDER
    every = np.minimum(step, step[::-1]) >= BORDER
    return _excess(work[every]), _excess(work[inside])


def _excess(work: np.ndarray) -> float:
    return float(work.max(axis=1).sum() / work.mean(axis=1).sum()) - 1
