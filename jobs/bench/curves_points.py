"""The points of the curves: what is simulated for each, and how."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import lru_cache
from statistics import mean
from typing import Any

import numpy as np

from packer.lengths import fig3_lengths
from packer.packing.config import PackingConfig
from packer.schedule import Coupling, Schedule
from packer.simulate import QUEUED_POLICIES, simulate
from packer.workload import Workload

CONTEXT_LENGTH = 131_072
WORKLOAD = Workload(crossover=47_100)
TOKENS_PER_DOCUMENT = 1500
"""Somewhat less than the mean of `fig3_lengths`, so that there are documents enough."""

POLICIES: dict[str, frozenset[str]] = {
    "concat": frozenset(),
    "reorder": frozenset({"max_tokens_over_context"}),
    "fixed_greedy": frozenset({"global_batches"}),
    "wlb": frozenset({"max_tokens_over_context", "mean_displacement"}),
    "lookahead": frozenset(
        {
            "max_tokens_over_context",
            "mean_displacement",
            "token_band",
            "window_steps",
            "moves_per_piece",
            "objective",
        }
    ),
}
"""The policies of the curves, and which options of a `Point` they heed; a curve over another one
is a level line. `fixed_greedy` heeds `global_batches`."""

MEASURES = (
    "excess",
    "schedule_time",
    "lockstep_time",
    "displacement_mean",
    "tokens_per_step_cv",
    "documents_per_s",
)
"""Of a point's runs the means are kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One plan on one cluster, of so many streams as there are seeds."""

    policy: str
    num_micro_batches: int
    dp_size: int
    steps: int
    """About how many steps of documents are packed."""
    pp_size: int = 4
    virtual_stages: int = 1
    coupling: Coupling = "gradient_sync"
    max_tokens_over_context: float = 1.25
    mean_displacement: float = 0.5
    token_band: float = 0.0
    window_steps: int = 64
    moves_per_piece: int = 0
    objective: str = "schedule"
    global_batches: int = 1

    @property
    def schedule(self) -> Schedule:
        return Schedule(
            dp_size=self.dp_size,
            pp_size=self.pp_size,
            virtual_stages=self.virtual_stages,
            coupling=self.coupling,
        )


OPTIONS = frozenset().union(*POLICIES.values()) | {"global_batches"}
_DEFAULTS = {field.name: field.default for field in fields(Point)}


def plain(point: Point) -> Point:
    """The point with the default for each option that its policy does not heed."""
    ignored = OPTIONS - POLICIES[point.policy]
    return replace(point, **{name: _DEFAULTS[name] for name in ignored})


def groups(points: Iterable[Point]) -> list[tuple[Point, ...]]:
    """Points that share the tuning of thresholds, each once; the longest groups first."""
    found: dict[tuple[Any, ...], dict[Point, None]] = {}
    for point in points:
        key = (
            point.policy,
            point.num_micro_batches,
            point.steps,
            point.max_tokens_over_context,
            point.mean_displacement,
        )
        found.setdefault(key, {})[point] = None
    return sorted(map(tuple, found.values()), key=lambda group: -sum(map(_effort, group)))


def _effort(point: Point) -> int:
    """How long a point takes, about."""
    searched = (point.moves_per_piece or 800) if point.policy == "lookahead" else 50
    return point.num_micro_batches * point.steps * searched


def measure(points: Sequence[Point], seed: int) -> list[dict[str, Any]]:
    """The figures of a group's points on one stream."""
    thresholds: tuple[int, ...] = ()
    found = []
    for point in points:
        extra: dict[str, Any] = {}
        if "global_batches" in POLICIES[point.policy]:
            extra["global_batches"] = (point.global_batches,)
        (row,) = simulate(
            lengths_of(point.num_micro_batches * CONTEXT_LENGTH * point.steps, seed),
            [point.policy],
            PackingConfig(
                num_micro_batches=point.num_micro_batches,
                context_length=CONTEXT_LENGTH,
                max_tokens=int(point.max_tokens_over_context * CONTEXT_LENGTH),
                schedule=point.schedule if point.objective == "schedule" else None,
                mean_displacement=point.mean_displacement,
                token_band=point.token_band,
                window_steps=point.window_steps,
                moves_per_piece=point.moves_per_piece,
                thresholds=thresholds,
            ),
            workload=WORKLOAD,
            schedule=point.schedule,
            steps=point.steps,
            **extra,
        )
        if point.policy in QUEUED_POLICIES:
            thresholds = tuple(row["thresholds"])
        found.append(row)
    return found


def row_of(point: Point, places: dict[str, int], runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What is kept of a point: its place in each sweep, its options, means over the seeds.

    `excess_spread` is the largest excess of a seed less the smallest.
    """
    excess = [run["excess"] for run in runs]
    return {
        "sweeps": places,
        **asdict(point),
        **{name: float(f"{mean(run[name] for run in runs):.6g}") for name in MEASURES},
        "excess_spread": float(f"{max(excess) - min(excess):.6g}"),
        "max_tokens_seen": max(run["max_tokens_seen"] for run in runs),
        "steps_made": min(run["steps"] for run in runs),
    }


@lru_cache(maxsize=4)
def lengths_of(tokens: int, seed: int) -> np.ndarray:
    """Documents of at least so many tokens, (documents,)."""
    return fig3_lengths(tokens // TOKENS_PER_DOCUMENT, seed)
