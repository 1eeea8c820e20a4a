"""Which bound keeps a plan from being better.

Where a step takes more time than even micro-batches would, something kept light micro-batches from
taking more, or heavy ones from meeting their like: each bound that did is charged with the time.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from packer.packing.config import PackingConfig
from packer.packing.search.objective import Objective, band_of
from packer.plan import Steps

NEAR = 0.97
"""Share of a bound from which on it counts as reached: pieces do not fill the last few tokens."""
SPENT = 0.95
"""Share of the displacement budget from which on it counts as spent: policies keep a margin."""
HALF = 0.5
FIXED = ("concat", "fixed_greedy", "fixed_solver")
"""Policies whose micro-batches hold S tokens at most."""
BUDGETED = ("wlb", "lookahead")
"""Policies with a budget of mean displacement."""


class BindingMeter:
    """Charges the bounds of a plan with the time lost, window by window.

    Args:
        config: what was packed under.
        policy: by which; what it does not look at binds nothing.
    """

    def __init__(self, config: PackingConfig, policy: str) -> None:
        self._config = config
        self._most_tokens = config.context_length if policy in FIXED else config.max_tokens
        self._has_budget = policy in BUDGETED
        self._has_bands = policy == "lookahead"
        asked = config if policy == "lookahead" else replace(config, schedule=None)
        self._objective = Objective.of(asked)
        self._lost = 0.0
        self._charged = {"max_tokens": 0.0, "max_pieces": 0.0, "token_band": 0.0}
        self._tokens = self._displacement = 0

    def add(self, steps: Steps) -> None:
        """Charge some more steps."""
        config = self._config
        work = steps.row_workload.reshape(steps.num_steps, -1)
        lost = np.maximum(0.0, self._objective.times(work) - work.sum(axis=1))
        tokens = steps.row_tokens.reshape(work.shape)
        pieces = np.diff(steps.row_offsets).reshape(work.shape)
        self._lost += float(lost.sum())
        self._charge("max_tokens", lost, _others(tokens) >= NEAR * self._most_tokens)
        if config.max_pieces:
            self._charge("max_pieces", lost, _others(pieces) >= NEAR * config.max_pieces)
        if self._has_bands and config.token_band:
            most = band_of(config)[1]
            slack = (1 - NEAR) * config.token_band * config.intake_tokens
            self._charge("token_band", lost, tokens.sum(axis=1) >= most - slack)
        displacement = steps.displacement(config.intake_tokens)
        self._displacement += int((displacement * steps.pieces.tokens).sum())
        self._tokens += int(steps.pieces.tokens.sum())

    def _charge(self, bound: str, lost: np.ndarray, binds: np.ndarray) -> None:
        self._charged[bound] += float(lost[binds].sum())

    def shares(self) -> dict[str, float]:
        """Of each bound that binds anywhere, the share of the time lost where it does.

        Mean displacement binds everywhere or nowhere: where its budget is spent. Shares may sum to
        more than 1, since one of two bounds that are in the way is not enough to raise.
        """
        if self._lost <= 0:
            return {}
        shares = {name: charged / self._lost for name, charged in self._charged.items() if charged}
        budget = self._config.mean_displacement * self._tokens
        if self._has_budget and self._displacement >= SPENT * budget:
            shares["mean_displacement"] = 1.0
        return shares

    def binding(self) -> list[str]:
        """Bounds in the way of half of the time lost or more, the largest share first."""
        shares = self.shares()
        return sorted((name for name in shares if shares[name] >= HALF), key=lambda n: -shares[n])


def _others(values: np.ndarray) -> np.ndarray:
    """The mean of each step's slots but the first, (steps,); of the first where it is alone."""
    return values[:, 1:].mean(axis=1) if values.shape[1] > 1 else values[:, 0]
