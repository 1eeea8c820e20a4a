"""What the kept losses say: each policy beside `concat`, in units of the spread over seeds."""

from __future__ import annotations

import statistics
from typing import Any

Rows = list[dict[str, Any]]

REFERENCE = "concat"
AVERAGED = 20
"""Last steps whose mean is a run's final training loss."""


def by_policy(rows: Rows) -> dict[str, Rows]:
    """The runs of each policy, in order of seeds."""
    found: dict[str, Rows] = {}
    for row in sorted(rows, key=lambda row: row["seed"]):
        found.setdefault(row["policy"], []).append(row)
    return {policy: found[policy] for policy in dict.fromkeys(row["policy"] for row in rows)}


def spread(rows: Rows) -> float:
    """Of the final held-out loss over seeds: the standard deviation, all policies together."""
    variances = [
        statistics.variance(row["held_out"][-1][1] for row in runs)
        for runs in by_policy(rows).values()
    ]
    return statistics.mean(variances) ** 0.5


def differences(rows: Rows, policy: str) -> list[float]:
    """A policy's final held-out loss less that of `concat` with the same seed, a seed each."""
    runs = by_policy(rows)
    pairs = zip(runs[policy], runs[REFERENCE], strict=True)
    return [mine["held_out"][-1][1] - other["held_out"][-1][1] for mine, other in pairs]


def loss_table(rows: Rows) -> list[str]:
    """A line a policy, means over the seeds."""
    seeds = " / ".join(str(row["seed"]) for row in by_policy(rows)[REFERENCE])
    lines = [
        "| policy | excess | displacement | tokens of `concat` | training loss, end "
        f"| held-out loss, end | spread over seeds | less `concat`, seeds {seeds} | in spreads |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    unit = spread(rows)
    for policy, runs in by_policy(rows).items():
        final = [row["held_out"][-1][1] for row in runs]
        less = differences(rows, policy)
        beside = "| | |"
        if policy != REFERENCE:
            each = " / ".join(f"{value:+.4f}" for value in less)
            beside = f"| {each} | {statistics.mean(less) / unit:+.2f} |"
        lines.append(
            f"| `{policy}` | {_mean(runs, 'excess'):.3f} | {_mean(runs, 'displacement_mean'):.2f} "
            f"| {_mean(runs, 'same_tokens'):.2%} | {_end(runs):.4f} "
            f"| {statistics.mean(final):.4f} | {statistics.stdev(final):.4f} {beside}"
        )
    return lines


def _mean(runs: Rows, name: str) -> float:
    return statistics.mean(row[name] for row in runs)


def _end(runs: Rows) -> float:
    return statistics.mean(statistics.mean(row["loss"][-AVERAGED:]) for row in runs)
