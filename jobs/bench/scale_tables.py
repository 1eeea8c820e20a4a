"""Tables of docs/SCALE.md: what planning a large corpus took, and what trillions of tokens cost."""

from __future__ import annotations

from typing import Any

Rows = list[dict[str, Any]]
SIZES = {"1T": 10**12, "15T": 15 * 10**12}
CORES = 1_000


def growth_table(rows: Rows) -> list[str]:
    """Time, memory and bytes of planning, and what 15T tokens come to at that rate."""
    lines = [
        "| policy | documents | tokens | CPU s | documents/CPU s | peak MiB | mapped MiB "
        "| plan MiB | scratch MiB | CPU hours, 15T |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    return lines + [
        f"| `{row['policy']}` | {row['documents']:,} | {row['tokens'] / 1e9:,.1f}B "
        f"| {row['cpu_seconds']:,.0f} | {row['documents_per_cpu_s']:,.0f} | {row['peak_mib']:,.0f} "
        f"| {row['mapped_files_mib']:,.0f} | {row['plan']:,.0f} | {row['scratch']:,.0f} "
        f"| {row['cpu_seconds'] * SIZES['15T'] / row['tokens'] / 3600:,.1f} |"
        for row in rows
    ]


def stages_table(rows: Rows) -> list[str]:
    """CPU time of each stage that workers share, and what that is at sizes that were not run."""
    hours = " | ".join(f"CPU hours, {name}" for name in SIZES)
    lines = [
        f"| stage | tokens/CPU s | {hours} | hours on {CORES:,} cores, 15T |",
        "|---" * (3 + len(SIZES)) + "|",
    ]
    for row in rows:
        if row["stage"] == "plan":
            continue  # a cost a document: the other table
        spent = [size / row["tokens_per_cpu_s"] / 3600 for size in SIZES.values()]
        lines.append(
            f"| {row['stage']} | {row['tokens_per_cpu_s'] / 1e6:,.1f}M "
            f"| {' | '.join(f'{value:,.0f}' for value in spent)} | {spent[-1] / CORES:,.2f} |"
        )
    return lines
