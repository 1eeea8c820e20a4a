"""The balance of a chain: its segments' measures as one.

Ratios of time are weighted by the work that they are ratios of, means and variations by tokens or
steps, so they are what one meter over all steps would show, but for the variations: what differs
between segments is asked for, and does not count.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

_SUMS = ("steps", "placed_tokens", "placed_pieces", "total_workload")
_MOST = ("displacement_max", "tokens_per_step_max", "max_tokens_seen", "max_pieces_seen")
_BY_TOKENS = (
    "sum_of_maxima_per_token",
    "displacement_mean",
    "delay_mean",
    "schedule_time_per_token",
)
_BY_STEPS = (
    "imbalance_degree_mean",
    "tokens_per_step_mean",
    "tokens_per_step_cv",
    "long_share_cv",
    "source_share_cv",
)
_BY_WORK = ("lockstep_time", "schedule_time")


def combined(balances: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The fields of `packer.measures.Balance` over all segments of a chain.

    Those that say for which cluster and N the measures are, are the last segment's.

    Args:
        balances: of each segment, in order; that of one segment is its own.
    """
    if len(balances) == 1:
        return dict(balances[0])

    def mean(name: str, weights: Sequence[float]) -> float:
        parts = zip(balances, weights, strict=True)
        return sum(balance[name] * weight for balance, weight in parts) / sum(weights)

    steps, tokens, work = (
        [balance[name] for balance in balances]
        for name in ("steps", "placed_tokens", "total_workload")
    )
    mean_work = [balance["total_workload"] / balance["num_micro_batches"] for balance in balances]
    degree = mean("imbalance_degree", mean_work)
    return {
        **balances[-1],
        **{name: sum(balance[name] for balance in balances) for name in _SUMS},
        **{name: max(balance[name] for balance in balances) for name in _MOST},
        "tokens_per_step_min": min(balance["tokens_per_step_min"] for balance in balances),
        "imbalance_degree": degree,
        "excess": degree - 1,
        **{name: mean(name, tokens) for name in _BY_TOKENS},
        **{name: mean(name, steps) for name in _BY_STEPS},
        **{name: mean(name, work) for name in _BY_WORK},
    }
