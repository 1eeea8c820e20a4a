"""The tables of CP strategies, from `cp.json`."""

from __future__ import annotations

from typing import Any

Rows = list[dict[str, Any]]
_SHORT = ("per_sequence", "per_document", "mixed")


def strategies_table(rows: Rows) -> list[str]:
    """Every strategy at every degree, its exchange hidden."""
    lines = [
        "| policy | cp | strategy | cp_attention | mean | cp_tokens | tile_waste | kv_cut "
        "| kv_needed | time | plans/s |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        if row["kv_exchange"]:
            continue
        lines.append(
            f"| `{row['policy']}` | {row['cp_size']} | {_name(row)} | {row['cp_attention']:.3f} "
            f"| {row['cp_attention_mean']:.3f} | {row['cp_tokens']:.3f} | {row['tile_waste']:.3f} "
            f"| {row['kv_cut']:.2f} | {row['kv_needed']:.2f} | {row['predicted_time']:,.0f} "
            f"| {row['plans_per_s']:,.0f} |"
        )
    return lines


def exchange_table(rows: Rows) -> list[str]:
    """Strategies where the exchange is exposed, beside their time where it is hidden."""
    lines = [
        "| policy | cp | strategy | kv_needed | time, hidden | time, exposed | chosen |",
        "|---|---|---|---|---|---|---|",
    ]
    keys = ("policy", "cp_size", "strategy")
    hidden = {
        tuple(row[key] for key in keys): row["predicted_time"]
        for row in rows
        if not row["kv_exchange"]
    }
    for row in rows:
        if not row["kv_exchange"]:
            continue
        chosen = ", ".join(
            f"{count} `{name}`" for name, count in (row["chosen"] or {}).items() if count
        )
        lines.append(
            f"| `{row['policy']}` | {row['cp_size']} | `{row['strategy']}` "
            f"| {row['kv_needed']:.2f} | {hidden[tuple(row[key] for key in keys)]:,.0f} "
            f"| {row['predicted_time']:,.0f} | {chosen} |"
        )
    return lines


def short_table(rows: Rows) -> list[str]:
    """The README's: the paper's two strategies and ours, micro-batches of `concat`."""
    lines = [
        "| cp | strategy | slowest rank's attention | tile waste | tokens in cut pieces "
        "| KV needed of others | time |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        if row["policy"] != "concat" or row["kv_exchange"] or row["strategy"] not in _SHORT:
            continue
        lines.append(
            f"| {row['cp_size']} | `{row['strategy']}` | {row['cp_attention']:.3f} "
            f"| {row['tile_waste']:.3f} | {row['kv_cut']:.2f} | {row['kv_needed']:.2f} "
            f"| {row['predicted_time']:,.0f} |"
        )
    return lines


def _name(row: dict[str, Any]) -> str:
    """The strategy, and what it chose."""
    chosen = [(name, count) for name, count in (row["chosen"] or {}).items() if count]
    words = ", ".join(f"{count} {name}" for name, count in chosen)
    return f"`{row['strategy']}`" + (f" ({words})" if words else "")
