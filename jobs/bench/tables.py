"""The tables of the README and the docs, written from the kept results; `--check` compares only.

A table stands between `<!-- table NAME -->` and `<!-- end NAME -->`. Numbers are never edited by
hand.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from jobs.bench import cp_tables, curves_tables, loss_tables, scale_tables
from jobs.bench.machine import RESULTS

_COMMANDS = {
    "peers": "make bench-peers",
    "curves": "make curves",
    "loss": "make loss-curves",
}
ROOT = Path(__file__).parents[2]
Rows = list[dict[str, Any]]


def packing_table(rows: Rows) -> list[str]:
    """Documents per second of each packer."""
    lines = ["| packer | N | documents/s, one core | ms a step |", "|---|---|---|---|"]
    return lines + [
        f"| `{row['policy']}` | {row['num_micro_batches']} | {row['documents_per_s']:,.0f} "
        f"| {row['ms_per_step']:.2f} |"
        for row in rows
    ]


def balance_table(rows: Rows) -> list[str]:
    """Excess of each policy at each setting: the heaviest micro-batch counts."""
    lines = [
        "| N | S_max | policy | excess | mean of ratios - 1 | displacement mean | max "
        "| tokens/step cv |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        lines.append(
            f"| {row['num_micro_batches']} | {row['max_tokens_over_context']} S "
            f"| {_policy(row)} | {row['excess']:.3f} | {row['imbalance_degree_mean'] - 1:.3f} "
            f"| {row['displacement_mean']:.2f} | {row['displacement_max']} "
            f"| {row['tokens_per_step_cv']:.2f} |"
        )
    return lines


def schedule_table(rows: Rows) -> list[str]:
    """Time of each policy's steps on a cluster."""
    lines = [
        "| N | dp, pp | policy | schedule time | range over (seeds) | lockstep time "
        "| displacement mean | max | tokens/step cv |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        times = row["schedule_times"]
        lines.append(
            f"| {row['num_micro_batches']} | {row['dp_size']}, 4 | {_policy(row)} "
            f"| {row['schedule_time']:.3f} | {min(times):.3f} to {max(times):.3f} ({len(times)}) "
            f"| {row['lockstep_time']:.3f} | {row['displacement_mean']:.2f} "
            f"| {row['displacement_max']} | {row['tokens_per_step_cv']:.2f} |"
        )
    return lines


def _policy(row: dict[str, Any]) -> str:
    """The policy, and what it was held to beyond the usual."""
    name = f"`{row['policy']}`"
    if row["budget"] is not None and row["budget"] != 0.5:
        name += f", displacement {row['budget']}"
    return name + (f", tokens within {row['token_band']:.0%}" if row["token_band"] else "")


def orders_table(rows: Rows) -> list[str]:
    """Schedule time heaviest first, and under the best rule, a column a policy."""
    policies = list(dict.fromkeys(row["policy"] for row in rows))
    lines = [
        f"| N | dp, pp | ranks in lockstep | {' | '.join(f'`{name}`' for name in policies)} |",
        "|---" * (3 + len(policies)) + "|",
    ]
    cells: dict[tuple[Any, ...], list[str]] = {}
    for row in rows:
        chunks = f" x {row['virtual_stages']}" if row["virtual_stages"] > 1 else ""
        lockstep = "yes" if row["coupling"] == "lockstep" else "no"
        cluster = f"{row['dp_size']}, {row['pp_size']}{chunks}"
        cell = f"{row['plain']:.3f}, {row['best']:.3f} `{row['order']}`"
        cells.setdefault((row["num_micro_batches"], cluster, lockstep), []).append(cell)
    for key, mine in cells.items():
        lines.append("| " + " | ".join([*map(str, key), *mine]) + " |")
    return lines


def table2_table(rows: Rows) -> list[str]:
    """The paper's Table 2 beside ours, on both lists of lengths."""
    lines = [
        "| method | paper | `fig3_stream` | `fig3` | displacement | max over mean of sums |",
        "|---|---|---|---|---|---|",
    ]
    other = {row["method"]: row for row in rows if row["lengths"] == "fig3"}
    for row in rows:
        if row["lengths"] == "fig3":
            continue
        paper = "" if row["paper"] is None else f"{row['paper']:.2f}"
        drawn = other[row["method"]]
        method, solved = row["method"], row["solver"]
        if solved:
            method += (
                f" (gap {solved['gap_mean']:.2%}, {solved['at_limit']} of {solved['windows']} "
                "windows at the limit)"
            )
        lines.append(
            f"| {method} | {paper} | {row['imbalance_degree_mean']:.3f} "
            f"| {drawn['imbalance_degree_mean']:.3f} "
            f"| {row['displacement_mean']:.2f}, {drawn['displacement_mean']:.2f} "
            f"| {row['imbalance_degree']:.3f}, {drawn['imbalance_degree']:.3f} |"
        )
    return lines


def build_table(rows: Rows) -> list[str]:
    """The build beside the bare library."""
    lines = [
        "| what | text | seconds | CPU seconds | tokens/s | tokens/CPU s |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        if "tokens" not in row:
            lines.append(f"| {row['what']} | | {row['seconds']:.1f} | | | |")
            continue
        lines.append(
            f"| {row['what']} | {row['text_mb']:.0f} MB | {row['seconds']:.1f} "
            f"| {row['cpu_seconds']:.1f} | {row['tokens_per_s']:,.0f} "
            f"| {row['tokens_per_cpu_s']:,.0f} |"
        )
    return lines


def memory_table(rows: Rows) -> list[str]:
    """Peak memory at two corpus sizes."""
    lines = ["| text | peak memory | mapped files |", "|---|---|---|"]
    for row in rows:
        lines.append(
            f"| {row['text_mb']:.0f} MB | {row['peak_mib']:,.0f} MiB "
            f"| {row['mapped_files_mib']:,.0f} MiB |"
        )
    return lines


def huge_table(rows: Rows) -> list[str]:
    """One huge document beside ordinary ones, an engine a row."""
    lines = [
        "| engine | text | ordinary, s | one document, s | ratio | peak, ordinary | peak, one |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        start = f"| `{row['engine']}` | {row['text_mb']:.0f} MB |"
        if row["failed"]:
            lines.append(f"{start} {_words(row['failed'])} | | | | |")
            continue
        lines.append(
            f"{start} {row['ordinary_seconds']:.1f} | {row['huge_seconds']:.1f} "
            f"| {row['ratio']:.2f} | {row['ordinary_peak_mib']:,.0f} MiB "
            f"| {row['huge_peak_mib']:,.0f} MiB |"
        )
    return lines


def reader_table(rows: Rows) -> list[str]:
    """Ways of reading packed micro-batches; what failed says why."""
    lines = [
        "| S | ids | way | checks | M tokens/CPU s | M tokens/s | of the mmap | same |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        name = row["way"] + (f" ({row['package']})" if row["package"] else "")
        start = f"| {row['context_length']:,} | {row['dtype']} | {name} | {row['checks']} |"
        if row["failed"]:
            lines.append(f"{start} {_words(row['failed'])} | | | |")
            continue
        share = "" if row["of_mmap"] is None else f"{row['of_mmap']:.2f}"
        lines.append(
            f"{start} {row['tokens_per_cpu_s'] / 1e6:,.0f} | {row['tokens_per_s'] / 1e6:,.0f} "
            f"| {share} | {'yes' if row['same'] else 'no'} |"
        )
    return lines


def peers_table(rows: Rows) -> list[str]:
    """Other tools and ours on one corpus; what failed says why."""
    lines = [
        "| tool | how | s | stage s | CPU s | MB/s | stage MB/s | M tokens | peak MiB | same ids |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        version = row["versions"].get(row["package"], "")
        name = f"{row['tool']} {version}".strip() if row["package"] else f"Steelyard {row['tool']}"
        start = f"| {name} | {row['does']} |"
        if row["failed"]:
            lines.append(f"{start} {_words(row['failed'])} | | | | | | | |")
            continue
        same = {True: "yes", False: "no", None: ""}[row["same_ids"]]
        lines.append(
            f"{start} {row['seconds']:.1f} | {row['stage_seconds']:.1f} "
            f"| {row['cpu_seconds']:.1f} | {row['mb_per_s']:.2f} | {row['stage_mb_per_s']:.2f} "
            f"| {row['found']['tokens'] / 1e6:.2f} | {row['peak_mib']:,.0f} | {same} |"
        )
    return lines


def _words(text: str) -> str:
    """A message that does not break a table."""
    return " ".join(text.replace("|", "/").split())


Table = Callable[[Rows], list[str]]
TABLES: dict[str, Table] = {
    "packing": packing_table,
    "balance": balance_table,
    "schedule": schedule_table,
    "orders": orders_table,
    "table2": table2_table,
    "build": build_table,
    "memory": memory_table,
    "huge": huge_table,
    "reader": reader_table,
    "peers": peers_table,
}
"""The README's tables that are all that is shown of the results of the same name."""
CHOOSING: dict[str, Table] = {
    "choice": curves_tables.choice_table,
    "band": curves_tables.band_table,
    "windows": curves_tables.windows_table,
    "effort": curves_tables.effort_table,
}
PAGES: dict[str, dict[str, tuple[str, Table]]] = {
    "README.md": {name: (name, table) for name, table in TABLES.items()}
    | {
        "choice": ("curves", curves_tables.short_choice_table),
        "cp": ("cp", cp_tables.short_table),
    },
    "docs/CHOOSING.md": {name: ("curves", table) for name, table in CHOOSING.items()},
    "docs/CONTEXT_PARALLEL.md": {
        "cp": ("cp", cp_tables.strategies_table),
        "exchange": ("cp", cp_tables.exchange_table),
    },
    "docs/SCALE.md": {
        "growth": ("growth", scale_tables.growth_table),
        "stages": ("stages", scale_tables.stages_table),
    },
    "docs/TRAINING.md": {"loss": ("loss", loss_tables.loss_table)},
}
"""By page and by name in it: the results that a table is of, and what writes it."""


def render(page: str, text: str) -> str:
    """A page with every table written anew."""
    for name, (source, table) in PAGES[page].items():
        path = RESULTS / f"{source}.json"
        if not path.exists():
            continue
        kept = json.loads(path.read_text())
        body = "\n".join([*table(kept["rows"]), "", _origin(source, kept)])
        pattern = re.compile(rf"(<!-- table {name} -->\n).*?(<!-- end {name} -->)", re.DOTALL)
        text, count = pattern.subn(lambda match, body=body: match[1] + body + "\n" + match[2], text)
        if count != 1:
            raise SystemExit(f"{page} has {count} places for table {name}; it must have one")
    return text


def _origin(name: str, kept: dict[str, Any]) -> str:
    machine, corpus = kept["machine"], kept.get("corpus")
    versions = ", ".join(f"{key} {value}" for key, value in machine["versions"].items())
    command = _COMMANDS.get(name, f"python -m jobs.bench.run {name}")
    text = (
        f"`{command}`, {machine['date']}: {machine['processor']}, "
        f"{machine['cores']} cores, {machine['memory_gib']} GiB, Python {machine['python']}, "
        f"{versions}."
    )
    if "note" in kept:
        text += f" {kept['note']}"
    if corpus is None:
        return text
    return (
        f"{text} Text: {corpus['text_bytes'] / 1e6:,.0f} MB, {corpus['documents']:,} documents, "
        f"SHA-256 `{corpus['sha256'][:16]}`."
    )


def main(arguments: list[str]) -> None:
    """Write the tables, or with `--check` only compare."""
    for page in PAGES:
        path = ROOT / page
        old = path.read_text(encoding="utf-8")
        new = render(page, old)
        if arguments != ["--check"]:
            path.write_text(new, encoding="utf-8")
        elif new != old:
            raise SystemExit(f"{page}: tables differ from jobs/bench/results: run make bench")


if __name__ == "__main__":
    main(sys.argv[1:])
