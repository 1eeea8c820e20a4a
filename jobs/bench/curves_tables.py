"""The tables of docs/CHOOSING.md and the README's short form of one, from the kept rows."""

from __future__ import annotations

from typing import Any

from jobs.bench.curves_series import rows_of

Rows = list[dict[str, Any]]

NEAR = 0.01
"""Times that differ by less are taken for equal: then the policy that plans faster is better."""
SHORT_SIZE = 64
"""N of the README's table."""


def choice_table(rows: Rows) -> list[str]:
    """Who needs what: time and displacement of each policy on each kind of cluster."""
    return _choice(rows_of(rows, "choice"))


def short_choice_table(rows: Rows) -> list[str]:
    """The same at one N."""
    chosen = rows_of(rows, "choice")
    return _choice([row for row in chosen if row["num_micro_batches"] == SHORT_SIZE] or chosen)


def band_table(rows: Rows) -> list[str]:
    """What evenness in tokens costs."""
    lines = [
        "| N | policy | band | excess | schedule time | displacement | tokens/step cv |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows_of(rows, "band"):
        band = f"{100 * row['token_band']:.0f}%" if row["token_band"] else "none"
        lines.append(
            f"| {row['num_micro_batches']} | `{row['policy']}` | {band} | {row['excess']:.3f} "
            f"| {row['schedule_time']:.3f} | {row['displacement_mean']:.2f} "
            f"| {row['tokens_per_step_cv']:.3f} |"
        )
    return lines


def windows_table(rows: Rows) -> list[str]:
    """Excess of all steps and of those away from borders, by the steps of a window."""
    lines = [
        "| N | steps | window | excess | away from borders | borders cost |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows_of(rows, "windows"):
        excess, inside = row["excess"], row["excess_inside"]
        lines.append(
            f"| {row['num_micro_batches']} | {row['steps']} | {row['window_steps']} | {excess:.4f} "
            f"| {inside:.4f} | {excess - inside:.4f} |"
        )
    return lines


def effort_table(rows: Rows) -> list[str]:
    """What more search brings, and costs."""
    lines = ["| N | effort | excess | documents/s, one core |", "|---|---|---|---|"]
    for row in rows_of(rows, "effort"):
        lines.append(
            f"| {row['num_micro_batches']} | {_effort(row['moves_per_piece'])} "
            f"| {row['excess']:.4f} | {row['documents_per_s']:,.0f} |"
        )
    return lines


def _effort(moves: int) -> str:
    return f"{moves} moves a piece" if moves else "default effort"


def _choice(rows: Rows) -> list[str]:
    policies = list(dict.fromkeys(row["policy"] for row in rows))
    lines = [
        f"| cluster | N, dp | {' | '.join(f'`{name}`' for name in policies)} | enough |",
        "|---" * (3 + len(policies)) + "|",
    ]
    found: dict[tuple[str, str], Rows] = {}
    for row in rows:
        key = _cluster(row), f"{row['num_micro_batches']}, {row['dp_size']}"
        found.setdefault(key, []).append(row)
    for (cluster, size), mine in found.items():
        cells = [f"{row['schedule_time']:.3f} ({row['displacement_mean']:.2f})" for row in mine]
        lines.append(f"| {cluster} | {size} | {' | '.join(cells)} | `{_enough(mine)}` |")
    return lines


def _cluster(row: dict[str, Any]) -> str:
    stages = f"PP {row['pp_size']}" if row["pp_size"] > 1 else "no PP"
    if row["virtual_stages"] > 1:
        stages += f", interleaved by {row['virtual_stages']}"
    return f"{stages}, lockstep" if row["coupling"] == "lockstep" else stages


def _enough(rows: Rows) -> str:
    """The first policy whose time is near the best: they stand in order of what they ask for."""
    best = min(row["schedule_time"] for row in rows)
    return next(str(row["policy"]) for row in rows if row["schedule_time"] <= best + NEAR)
