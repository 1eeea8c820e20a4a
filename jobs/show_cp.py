"""Figures of context-parallel plans as tables on stdout."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jobs.show import console_of, table_of

_MEASURES = (
    ("cp_attention", "attention", "slowest rank's attention tiles over an equal share"),
    ("cp_attention_mean", "mean", "the same, mean of the micro-batches' ratios"),
    ("cp_tokens", "tokens", "most tokens on a rank, pads among them, over an equal share"),
    ("tile_waste", "tiles", "attention tiles computed over query-key pairs needed"),
    ("kv_cut", "cut", "share of tokens in pieces that are cut"),
    ("kv_needed", "needed", "keys and values that ranks receive over what an all-gather brings"),
)
FEW_CHUNKS = 4
"""Chunks of a rank that a table shows."""


def strategies(rows: Sequence[dict[str, Any]]) -> None:
    """`steelyard simulate --cp-size`: a table a policy and degree."""
    console = console_of()
    groups: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        batches = "" if row["global_batches"] is None else f" ({row['global_batches']})"
        groups.setdefault(f"{row['policy']}{batches}, cp {row['cp_size']}", []).append(row)
    over = any(row["over_max_tokens"] for row in rows)
    columns = ["strategy", *(short for _, short, _ in _MEASURES), "time", "plans/s"]
    for name, group in groups.items():
        title = f"{name}: {group[0]['micro_batches']:,} micro-batches"
        table = table_of(title, [*columns, *(["above S_max"] if over else [])])
        for row in group:
            table.add_row(
                row["strategy"],
                *(f"{row[measure]:.4f}" for measure, _, _ in _MEASURES),
                f"{row['predicted_time']:,.0f}",
                f"{row['plans_per_s']:,.0f}",
                *([f"{row['over_max_tokens']:,}"] if over else []),
            )
        console.print(table)
        for row in group:
            if row["chosen"]:
                console.print(f"adaptive chose {chosen_words(row['chosen'])}")
    _legend(("plans/s", "micro-batches planned a CPU second, compiling apart"))
    if over:
        console.print("above S_max: micro-batches that their pads bring above it")


def degrees(by_degree: dict[str, dict[str, Any]]) -> None:
    """The degrees of `steelyard report`."""
    columns = ["cp, strategy", *(short for _, short, _ in _MEASURES), "time", "chosen"]
    table = table_of("context parallel", columns)
    for degree, row in by_degree.items():
        table.add_row(
            f"{degree}, {row['strategy']}",
            *(f"{row[name]:.4f}" for name, _, _ in _MEASURES),
            f"{row['predicted_time']:,.0f}",
            chosen_words(row.get("chosen") or {}),
        )
    console_of().print(table)
    _legend(("chosen", "micro-batches that each candidate made"))


def _legend(*more: tuple[str, str]) -> None:
    """A line a column."""
    console = console_of()
    for _, short, meaning in _MEASURES:
        console.print(f"{short}: {meaning}")
    console.print("time: slowest rank's predicted work, mean, in linear-token equivalents")
    for short, meaning in more:
        console.print(f"{short}: {meaning}")


def chosen_words(chosen: dict[str, int]) -> str:
    """How many micro-batches each made, those of none left out."""
    return ", ".join(f"{name} {count:,}" for name, count in chosen.items() if count)


def where_pieces_are(by_degree: dict[str, dict[str, Any]]) -> dict[str, list[str]]:
    """For each degree the ranks of each piece; a piece on several is cut."""
    return {
        f"cp {degree}": [_span(piece["ranks"]) for piece in plan["pieces"]]
        for degree, plan in by_degree.items()
    }


def micro_batch(degree: str, figures: dict[str, Any]) -> None:
    """One micro-batch's plan, of `steelyard inspect`."""
    considered = ", ".join(f"{name} {work:,.0f}" for name, work in figures["considered"].items())
    words = f"; slowest rank under {considered}" if considered else ""
    columns = ["cp rank", "tokens", "area", "linear", "attention", "exchange", "work", "of mean"]
    title = f"cp {degree}: {figures['strategy']}{words}"
    table = table_of(title, [*columns, "chunks (piece: tokens)"])
    for rank in figures["ranks"]:
        table.add_row(
            str(rank["cp_rank"]),
            f"{rank['tokens']:,}",
            f"{rank['area_share']:.3f}",
            *(f"{rank[name]:,.0f}" for name in ("linear", "attention", "exchange", "predicted")),
            f"{rank['of_mean']:.3f}",
            _chunks(rank["chunks"]),
        )
    console_of().print(table)


def _span(ranks: Sequence[int]) -> str:
    """Ranks in words, short where they are many in a row."""
    if len(ranks) > 2 and ranks[-1] - ranks[0] == len(ranks) - 1:
        return f"{ranks[0]} to {ranks[-1]}"
    shown = ", ".join(str(rank) for rank in ranks[:8])
    return shown if len(ranks) <= 8 else f"{shown}, +{len(ranks) - 8}"


def _chunks(chunks: Sequence[dict[str, int]]) -> str:
    """The first few, and how many more."""
    names = [
        f"{'pad' if chunk['piece'] < 0 else chunk['piece']}: {chunk['start']}-{chunk['stop']}"
        for chunk in chunks[:FEW_CHUNKS]
    ]
    more = len(chunks) - len(names)
    return ", ".join(names) + (f", +{more}" if more else "")
