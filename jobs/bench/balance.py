"""Balance on the paper's document lengths: every policy, several seeds, through `simulate`."""

from __future__ import annotations

from statistics import mean
from typing import Any

from jobs.simulation import SimulationRequest, simulate_lengths

CONTEXT_LENGTH = 131_072
SEEDS = range(5)
QUICK = ("concat", "reorder", "wlb")
ALL = (*QUICK, "lookahead")
SETTINGS = (  # N, S_max / S, dp, steps, policies
    (4, 1.25, 1, 420, ALL),
    (4, 1.5, 1, 420, ALL),
    (16, 1.25, 4, 420, ALL),
    (16, 1.5, 4, 420, ALL),
    (64, 1.25, 8, 110, QUICK),
)
_MEASURES = (
    "excess",
    "imbalance_degree_mean",
    "displacement_mean",
    "displacement_max",
    "tokens_per_step_cv",
    "lockstep_time",
    "schedule_time",
    "documents_per_s",
)


def run() -> list[dict[str, Any]]:
    """A row a setting and policy, means over the seeds."""
    rows = []
    for num_micro_batches, factor, dp_size, steps, policies in SETTINGS:
        runs = [
            simulate_lengths(
                _request(num_micro_batches, factor, dp_size, steps, policies, seed=seed)
            )
            for seed in SEEDS
        ]
        for place, policy in enumerate(policies):
            row: dict[str, Any] = {
                "num_micro_batches": num_micro_batches,
                "max_tokens_over_context": factor,
                "dp_size": dp_size,
                "policy": policy,
            }
            for measure in _MEASURES:
                row[measure] = mean(figures[place][measure] for figures in runs)
            row["displacement_max"] = max(figures[place]["displacement_max"] for figures in runs)
            row["steps"] = min(figures[place]["steps"] for figures in runs)
            rows.append(row)
    return rows


def _request(
    num_micro_batches: int,
    factor: float,
    dp_size: int,
    steps: int,
    policies: tuple[str, ...],
    *,
    seed: int,
) -> SimulationRequest:
    return SimulationRequest(
        lengths="fig3",
        policies=policies,
        num_micro_batches=num_micro_batches,
        context_length=CONTEXT_LENGTH,
        max_tokens=int(factor * CONTEXT_LENGTH),
        crossover=47_100,
        dp_size=dp_size,
        pp_size=4,
        virtual_stages=1,
        coupling="gradient_sync",
        micro_batch_order="auto",
        steps=steps,
        seed=seed,
        max_pieces=0,
        mean_displacement=0.5,
        window_steps=32,
        moves_per_piece=0,
        thresholds="tune",
        objective="max",
    )
