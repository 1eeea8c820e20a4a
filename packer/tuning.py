"""Outlier thresholds for `wlb`: the least excess at a stated mean displacement.

Queues balance by making long pieces wait. Lower thresholds and more queues balance better and wait
longer, up to a point where releases crowd out everything else; where that point is depends on N,
S_max and the lengths. So candidates are tried on a sample of the stream: a coarse grid for every
number of queues, then steps around the best. No randomness, no clock: the same sample gives the
same thresholds.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np

from packer.packing import kernels
from packer.packing.backlog import Backlog, Stop, release_age
from packer.packing.config import PackingConfig
from packer.packing.greedy import limits_of, rest_of, start_state
from packer.packing.packer import PackingError, sustainable_intake
from packer.plan import Int64, Pieces
from packer.workload import Workload

SAMPLE_STEPS = 400
SAMPLE_PIECES = 400_000
"""The sample is the head of the stream: at most so many steps and pieces."""
MARGIN = 0.03
"""Share of the displacement budget kept for what the sample does not show."""
GRID = 64
"""Thresholds are multiples of 1/GRID of the longest piece."""
COARSE = {1: range(4, 65, 4), 2: range(8, 65, 8), 3: range(16, 65, 16)}
"""Places on the grid that are tried first, by the number of queues."""
STARTS = 3
"""How many of the first tries are refined."""
WIDTHS = (3, 1)
"""Steps of the refinement, on the grid."""
MAX_LOWERED = 16
"""How often a candidate may lower the intake before it counts as no plan."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    """Thresholds, and what they gave on the sample."""

    thresholds: tuple[int, ...]
    """In tokens, ascending; empty where every queue takes more than the budget or does not help."""
    excess: float
    displacement_mean: float


def tune_thresholds(
    pieces: Pieces | np.ndarray,
    config: PackingConfig,
    workload: Workload,
    *,
    mean_displacement: float,
    max_queues: int = 3,
) -> Tuning:
    """The thresholds of least excess whose token-weighted mean displacement is in the budget.

    Args:
        pieces: the stream's pieces from its start, or their lengths in tokens.
        config: the bounds; its thresholds are not used.
        workload: what a piece costs.
        mean_displacement: the budget, in steps.
        max_queues: most queues to try, 1 to 3.

    Raises:
        PackingError: not even without queues is there a plan.
        ValueError: `max_queues` out of range.
    """
    if max_queues not in COARSE:
        raise ValueError(f"max_queues is {max_queues}; 1 to 3 can be tuned")
    search = _Search(pieces, config, workload, mean_displacement * (1 - MARGIN))
    base = search.measure(())
    if base is None:
        raise PackingError(
            f"no plan within max_tokens {config.max_tokens}, max_pieces {config.max_pieces} and "
            f"max_displacement {config.max_displacement} even without outlier queues"
        )
    best: tuple[int, ...] = ()
    for num_queues in range(1, max_queues + 1):
        candidates = [*combinations(COARSE[num_queues], num_queues), *_one_more(best)]
        found = search.ranked(candidates)[:STARTS]
        best = next(iter(search.ranked([best, *map(search.refine, found)])), ())
    return search.measure(best) or base


class _Search:
    """Candidates on the grid, measured once each."""

    def __init__(
        self,
        pieces: Pieces | np.ndarray,
        config: PackingConfig,
        workload: Workload,
        budget: float,
    ) -> None:
        if not isinstance(pieces, Pieces):
            pieces = Pieces.from_lengths(pieces)
        end = np.searchsorted(pieces.position, config.intake_tokens * SAMPLE_STEPS)
        self._pieces = pieces.take(slice(0, min(int(end), SAMPLE_PIECES)))
        self._tokens = self._pieces.tokens
        self._work = workload.of(self._tokens)
        self._longest = int(self._tokens.max()) if len(self._tokens) else 1
        self._config = config
        self._constant = workload.constant
        self._budget = budget
        self._known: dict[tuple[int, ...], Tuning | None] = {}

    def measure(self, places: tuple[int, ...]) -> Tuning | None:
        """What these places of the grid give; None where there is no plan."""
        if places not in self._known:
            self._known[places] = self._pack(tuple(self._longest * p // GRID for p in places))
        return self._known[places]

    def ranked(self, candidates: Iterable[tuple[int, ...]]) -> list[tuple[int, ...]]:
        """The candidates in the budget, least excess first."""
        found: list[tuple[float, tuple[int, ...]]] = []
        for places in candidates:
            tuning = self.measure(places)
            if tuning is not None and tuning.displacement_mean <= self._budget:
                found.append((tuning.excess, places))
        return [places for _, places in sorted(found)]

    def refine(self, places: tuple[int, ...]) -> tuple[int, ...]:
        """Move one threshold at a time, by less and less, while that helps."""
        for width in WIDTHS:
            while True:
                better = self.ranked([places, *_neighbours(places, width)])[0]
                if better == places:
                    break
                places = better
        return places

    def _pack(self, thresholds: tuple[int, ...]) -> Tuning | None:
        if thresholds and (min(thresholds) < 1 or len(set(thresholds)) < len(thresholds)):
            return None
        config = replace(self._config, thresholds=thresholds)
        for _ in range(MAX_LOWERED):
            tuning, backlog = self._pack_once(config)
            if backlog is None:
                return tuning
            _, intake = sustainable_intake(backlog, config)
            if intake < config.num_micro_batches:
                return None
            config = replace(config, intake_tokens=intake)
        return None

    def _pack_once(self, config: PackingConfig) -> tuple[Tuning | None, Backlog | None]:
        """A measure, or None for no plan; or the backlog at which intake proved too large."""
        num = config.num_micro_batches
        arrival = self._pieces.position // config.intake_tokens
        start = replace(Backlog.start(), pieces=self._pieces)
        state = start_state(start, self._tokens)
        hand, queued = np.empty_like(arrival), np.empty_like(arrival)
        row, row_work, stop = kernels.greedy_steps(
            self._tokens,
            self._work,
            arrival,
            np.array(config.thresholds, np.int64),
            hand,
            queued,
            limits_of(config, release_age(config)),
            state,
            True,
        )
        if stop in (Stop.LAG, Stop.LATE):
            return None, rest_of(start, row, hand, queued, state)
        if stop != Stop.MORE:
            return None, None
        work = row_work.reshape(-1, num) + self._constant
        excess = float(work.max(axis=1).sum() * num / work.sum() - 1) if len(work) else 0.0
        displacement = _mean_displacement(self._tokens, row, arrival, num)
        return (
            Tuning(thresholds=config.thresholds, excess=excess, displacement_mean=displacement),
            None,
        )


def _one_more(places: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Places with one more queue, on the coarse grid."""
    return [
        tuple(sorted((*places, place))) for place in COARSE[1] if places and place not in places
    ]


def _neighbours(places: tuple[int, ...], width: int) -> list[tuple[int, ...]]:
    """Places with one moved by `width` either way, still ascending and on the grid."""
    moved = [
        (*places[:number], place + change, *places[number + 1 :])
        for number, place in enumerate(places)
        for change in (-width, width)
    ]
    return [
        place
        for place in moved
        if place[0] >= 1 and place[-1] <= GRID and list(place) == sorted(set(place))
    ]


def _mean_displacement(tokens: Int64, row: Int64, arrival: Int64, num: int) -> float:
    placed = row >= 0
    weight = tokens[placed]
    moved = np.abs(row[placed] // num - arrival[placed])
    return float(np.dot(moved, weight) / weight.sum()) if len(weight) else 0.0
