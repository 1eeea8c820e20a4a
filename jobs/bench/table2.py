"""Table 2 of WLB-LLM (arXiv 2503.17924): its baselines and its algorithm on its document lengths.

N = 4, S = 131,072, S_max = 1.5 S, crossover 47,100; the paper's figure is the mean over steps of
the heaviest over the mean micro-batch. Two lists of lengths: `fig3`, drawn from its Figure 3 and
cut once more where the stream passes a window, and `fig3_stream`, whose parts of windows have the
figure's counts (`packer.window_lengths`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import mean
from typing import Any

import numpy as np

from packer.lengths import fig3_lengths
from packer.packing.config import PackingConfig
from packer.simulate import simulate
from packer.window_lengths import fig3_stream_lengths
from packer.workload import Workload

CONTEXT_LENGTH = 131_072
SEEDS = range(5)
STEPS = 1600
LISTS = {"fig3_stream": fig3_stream_lengths, "fig3": fig3_lengths}
_TOKENS_PER_DOCUMENT = 1_550
"""A little below the mean, so that there are enough."""
_MEASURES = (
    "imbalance_degree_mean",
    "imbalance_degree",
    "displacement_mean",
    "documents_per_s",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """A row of the table."""

    name: str
    policy: str
    paper: float | None = None
    global_batches: int = 1
    options: dict[str, Any] = field(default_factory=dict)
    """Of `PackingConfig`."""
    steps: int = STEPS
    seeds: range = SEEDS


def _sixteenths(*places: int) -> tuple[int, ...]:
    return tuple(place * CONTEXT_LENGTH // 16 for place in places)


def _greedy(paper: float, batches: int, *, longest_first: bool) -> Method:
    order = "the longest first" if longest_first else "long ones first"
    return Method(
        name=f"fixed greedy, {batches}, {order}",
        policy="fixed_greedy",
        paper=paper,
        global_batches=batches,
        options={"longest_first": longest_first},
    )


def _solver(paper: float, batches: int, seconds: float, steps: int) -> Method:
    return Method(
        name=f"fixed solver, {batches}, {seconds} s a window, {steps} steps",
        policy="fixed_solver",
        paper=paper,
        global_batches=batches,
        options={"solver_seconds": seconds},
        steps=steps,
        seeds=range(2),
    )


def _printed(paper: float, *places: int) -> Method:
    queues = ", ".join(f"{place}/16 S" for place in places)
    options = {"thresholds": _sixteenths(*places), "max_displacement": 64}
    return Method(
        name=f"WLB, queues from {queues}", policy="wlb_printed", paper=paper, options=options
    )


_GREEDY = {1: 1.41, 2: 1.22, 4: 1.11, 8: 1.08}
METHODS = (
    Method(name="original", policy="concat", paper=1.44),
    *(_greedy(paper, batches, longest_first=False) for batches, paper in _GREEDY.items()),
    *(_greedy(paper, batches, longest_first=True) for batches, paper in _GREEDY.items()),
    _solver(1.40, 1, 0.2, 100),
    _solver(1.18, 2, 0.5, 40),
    _printed(1.24, 9),
    _printed(1.05, 4, 11),
    _printed(1.05, 3, 8, 12),
    *(
        Method(name=f"{policy}, whole documents", policy=policy)
        for policy in ("ffd", "bfd", "karmarkar_karp")
    ),
)


def run() -> list[dict[str, Any]]:
    """A row a method and list of lengths, means over the seeds."""
    return [_row(method, lengths) for lengths in LISTS for method in METHODS]


def _row(method: Method, lengths: str) -> dict[str, Any]:
    runs = [_simulated(method, lengths, seed) for seed in method.seeds]
    row: dict[str, Any] = {
        "lengths": lengths,
        "method": method.name,
        "policy": method.policy,
        "paper": method.paper,
        "global_batches": runs[0]["global_batches"],
        "thresholds": runs[0]["thresholds"],
        "seeds": len(runs),
        "steps": min(figures["steps"] for figures in runs),
    }
    for measure in _MEASURES:
        row[measure] = mean(figures[measure] for figures in runs)
    row["violations"] = sum(sum(figures["violations"].values()) for figures in runs)
    row["solver"] = _solved([figures["solver"] for figures in runs])
    return row


def _simulated(method: Method, lengths: str, seed: int) -> dict[str, Any]:
    tokens = method.steps * 4 * CONTEXT_LENGTH
    documents: np.ndarray = LISTS[lengths](tokens // _TOKENS_PER_DOCUMENT, seed)
    (figures,) = simulate(
        documents,
        (method.policy,),
        PackingConfig(
            num_micro_batches=4,
            context_length=CONTEXT_LENGTH,
            max_tokens=CONTEXT_LENGTH * 3 // 2,
            **method.options,
        ),
        workload=Workload(crossover=47_100),
        global_batches=(method.global_batches,),
        steps=method.steps,
    )
    return figures


def _solved(runs: list[dict[str, Any] | None]) -> dict[str, Any] | None:
    """How the solver fared over all seeds."""
    found = [solved for solved in runs if solved is not None]
    if not found:
        return None
    windows = sum(solved["windows"] for solved in found)
    return {
        "windows": windows,
        "at_limit": sum(solved["at_limit"] for solved in found),
        "gap_mean": sum(solved["gap_mean"] * solved["windows"] for solved in found) / windows,
        "gap_max": max(solved["gap_max"] for solved in found),
        "seconds": sum(solved["seconds"] for solved in found),
    }
