"""Figures as tables on stdout."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from jobs.progress import Reporter

_BALANCE_ROWS = (
    ("imbalance_degree", "imbalance degree (max/mean over a step)", ".3f"),
    ("imbalance_degree_mean", "  mean of the steps' ratios", ".3f"),
    ("lockstep_time", "lockstep time at dp", ".3f"),
    ("schedule_time", "schedule time at dp, pp", ".3f"),
    ("schedule_time_per_token", "  the same, times the work of a token", ".3f"),
    ("displacement_mean", "displacement, mean (steps)", ".3f"),
    ("displacement_max", "displacement, max (steps)", "d"),
    ("tokens_per_step_cv", "tokens per step, cv", ".3f"),
    ("long_share_cv", "share of long pieces per step, cv", ".3f"),
    ("max_tokens_seen", "most tokens in a micro-batch", ",d"),
    ("steps", "steps", ",d"),
)
_SET_ASIDE = (
    ("too_short", "too short"),
    ("too_long", "too long"),
    ("truncated", "truncated"),
)


def console_of() -> Console:
    """Where results go."""
    return Console(highlight=False, markup=False, width=None if Console().is_terminal else 120)


def table_of(title: str, columns: Sequence[str]) -> Table:
    """A table whose first column stands left and the others right."""
    table = Table(title=title, title_justify="left", title_style="bold")
    table.add_column(columns[0])
    for column in columns[1:]:
        table.add_column(column, justify="right")
    return table


def balance(columns: dict[str, dict[str, Any]], title: str) -> None:
    """Policies beside one another, a measure a line."""
    table = table_of(title, ["", *columns])
    table.add_row(
        "micro-batch order", *(row.get("micro_batch_order", "identity") for row in columns.values())
    )
    for key, label, form in _BALANCE_ROWS:
        cells = [format(figures[key], form) for figures in columns.values()]
        table.add_row(label, *cells)
    console_of().print(table)


def plan(receipt: dict[str, Any], figures: dict[str, Any]) -> None:
    """What a build planned."""
    totals, segment = receipt["totals"], receipt["segment"]
    table = table_of("plan", ["", "tokens", "pieces", "documents"])
    table.add_row(
        "stream",
        f"{totals['stream_tokens']:,}",
        f"{totals['stream_pieces']:,}",
        f"{totals['stream_documents']:,}",
    )
    table.add_row("placed", f"{totals['placed_tokens']:,}", "", "")
    table.add_row("tail", f"{totals['tail_tokens']:,}", f"{totals['tail_pieces']:,}", "")
    table.add_row("cut", "", "", f"{totals['cut_documents']:,}")
    for reason, label in (("unselected", "not selected"), *_SET_ASIDE):
        tokens, documents = totals[f"{reason}_tokens"], totals[f"{reason}_documents"]
        if documents or reason == "unselected":
            table.add_row(f"{label}, first pass", f"{tokens:,}", "", f"{documents:,}")
    console_of().print(table)
    balance({segment["policy"]: figures}, "balance")


def report(directory: Path, figures: dict[str, Any]) -> None:
    """`steelyard report`."""
    console = console_of()
    rejected = figures["rejected"]
    words = ", ".join(f"{count:,} {reason}" for reason, count in sorted(rejected.items())) or "none"
    console.print(
        f"{directory}: {figures['documents']:,} documents, {figures['tokens']:,} tokens; "
        f"rejected: {words}"
    )
    segments = figures["segments"]
    for number, segment in enumerate(segments):
        tail = f"tail {figures['tail_tokens']:,} tokens; " if len(segments) == 1 else ""
        if len(segments) > 1:
            stop = segment["first_step"] + segment["steps"]
            cut = ", where a fork cut it" if segment["cut"] else ""
            console.print(f"segment {number}: steps {segment['first_step']} to {stop - 1}{cut}")
        console.print(
            f"{segment['steps']:,} steps of {segment['num_micro_batches']} micro-batches, "
            f"S {segment['context_length']:,}, S_max {segment['max_tokens']:,}, "
            f"A {segment['intake_tokens']:,}; {tail}{_schedule(segment)}"
        )
        _segment(console, segment, "this set" if len(segments) == 1 else "this segment")
    if len(segments) > 1:
        title = f"the chain of {len(segments)} segments; tails {figures['tail_tokens']:,} tokens"
        balance({"all steps": figures}, title)
    console.print(
        "Times are relative to a plan's own work spread evenly. concat cuts documents, so its\n"
        "tokens attend to fewer before them: less work, but not the same training."
    )


def _segment(console: Console, figures: dict[str, Any], name: str) -> None:
    """A segment's mixture, and its balance beside that of other policies."""
    _sources(console, figures["sources"])
    possible = {policy: row for policy, row in figures["baselines"].items() if row is not None}
    for policy in figures["baselines"].keys() - possible.keys():
        console.print(f"{policy}: no plan within the same bounds")
    balance({**possible, f"{figures['policy']} ({name})": figures}, "balance on the same stream")
    in_the_way = ", ".join(figures["binding"]) or "none"
    console.print(
        f"bounds in the way of more: {in_the_way}; "
        f"tokens out of bands: {figures['outside_bands']:,}"
    )


def _schedule(figures: dict[str, Any]) -> str:
    """What times were computed for, in words."""
    chunks = f" x {figures['virtual_stages']}" if figures["virtual_stages"] > 1 else ""
    lockstep = ", lockstep" if figures["coupling"] == "lockstep" else ""
    return f"dp {figures['dp_size']}, pp {figures['pp_size']}{chunks}{lockstep}"


def _sources(console: Console, sources: Sequence[dict[str, Any]]) -> None:
    """The mixture, and what was set aside of each source in one pass."""
    table = table_of(
        "mixture",
        ["source", "asked", "got", "behind, ahead (tokens)", "share per step, cv", "epochs"],
    )
    for source in sources:
        table.add_row(
            source["name"],
            f"{source['asked_share']:.4f}",
            f"{source['share']:.4f}",
            f"{source['behind_tokens']:,}, {source['ahead_tokens']:,}",
            f"{source['share_cv']:.3f}",
            f"{source['epochs']:.2f} of {source['max_epochs']}",
        )
    console.print(table)
    reasons = (("unselected", "not selected, last pass"), *_SET_ASIDE)
    table = table_of("documents (tokens) set aside", ["source", *(label for _, label in reasons)])
    for source in sources:
        cells = [
            f"{source[f'{reason}_documents']:,} ({source[f'{reason}_tokens']:,})"
            for reason, _ in reasons
        ]
        table.add_row(source["name"], *cells)
    console.print(table)


def policies(rows: Sequence[dict[str, Any]]) -> None:
    """`steelyard simulate`."""
    named = {_policy_name(row): row for row in rows}
    balance(named, "policies on the same lengths")
    table = table_of(
        "packing", ["policy", "documents/s", "tail tokens", "A", "thresholds", "in the way"]
    )
    for name, row in named.items():
        table.add_row(
            name,
            f"{row['documents_per_s']:,.0f}",
            f"{row['tail_tokens']:,}",
            f"{row['intake_tokens']:,}",
            ", ".join(f"{threshold:,}" for threshold in row["thresholds"]),
            ", ".join(row["binding"]),
        )
    console_of().print(table)


def _policy_name(row: dict[str, Any]) -> str:
    batches = row["global_batches"]
    name = row["policy"] if batches is None else f"{row['policy']} ({batches})"
    return name if row["made_by"] == row["policy"] else f"{name} (as {row['made_by']})"


def micro_batch(figures: dict[str, Any], more: dict[str, list[str]]) -> None:
    """`steelyard inspect`; `more` has further columns of the table of pieces."""
    console = console_of()
    console.print(
        f"step {figures['step']}, slot {figures['slot']}: {figures['tokens']:,} tokens, "
        f"{figures['num_targets']:,} with a label, workload {figures['workload']:,.0f} "
        "linear-token equivalents"
    )
    places = [
        f"turn {place['turn']} of rank {place['dp_rank']} at dp {place['dp_size']}"
        for place in figures["runs_as"]
    ]
    console.print(f"runs as {', '.join(places)}")
    columns = [
        "piece",
        "source",
        "epoch",
        "doc_id",
        "doc_start",
        "tokens",
        "workload",
        "last label",
        *more,
    ]
    title = "pieces, and the CP ranks that hold some of them" if more else "pieces"
    table = table_of(title, columns)
    for index, piece in enumerate(figures["pieces"]):
        cells = [str(piece[name]) for name in ("source", "epoch", "doc_id", "doc_start")]
        label = str(piece["last_label"])
        table.add_row(
            str(index),
            *cells,
            f"{piece['tokens']:,}",
            f"{piece['workload']:,.0f}",
            label,
            *(column[index] for column in more.values()),
        )
    console.print(table)
    for index, piece in enumerate(figures["pieces"]):
        if "text" in piece:
            console.print(f"[{index}] {piece['text']!r}")


def document(figures: dict[str, Any]) -> None:
    """`steelyard inspect` of a document."""
    console = console_of()
    console.print(
        f"{figures['source']}, document {figures['doc_id']}: record {figures['record']} of "
        f"{figures['path']}, {figures['tokens']:,} tokens"
    )
    for name, value in (figures["metadata"] or {}).items():
        console.print(f"{name}: {value}")
    if "pieces" in figures:
        table = table_of("pieces", ["epoch", "doc_start", "doc_stop", "step", "slot"])
        for piece in figures["pieces"]:
            tail = [f"tail of segment {piece['segment']}", ""]
            place = tail if piece["step"] is None else [piece["step"], piece["slot"]]
            cells = [piece["epoch"], piece["doc_start"], piece["doc_stop"], *place]
            table.add_row(*(str(cell) for cell in cells))
        console.print(table)
    if "text" in figures:
        console.print(repr(figures["text"]))


def verified(directory: Path, counts: Any) -> None:
    """`steelyard verify`, when every law holds."""
    words = ", ".join(
        f"{name} {value:,}" for name, value in asdict(counts).items() if isinstance(value, int)
    )
    console_of().print(f"{directory}: every law holds; checked {words}")


def progress_lines(reporter: Reporter) -> Callable[[str, int, int], None]:
    """A progress function for verify: one line when a stage is complete."""

    def progress(stage: str, done: int, total: int) -> None:
        if done == total:
            reporter.line(f"verify {stage}: {total:,}")

    return progress


def as_dict(value: Any) -> dict[str, Any]:
    """A dataclass as JSON types."""
    return asdict(value)


def profile(document: dict[str, Any]) -> None:
    """What was measured, a length a line; times in milliseconds of one layer."""
    columns = ["tokens", "attention, ms", "the rest, ms", "us a token"]
    linear, attention = (
        dict(zip(document[name]["tokens"], document[name]["time"], strict=True))
        for name in ("linear", "attention")
    )
    table = table_of("a layer, forward and backward", columns)
    for tokens in sorted(linear.keys() | attention.keys()):
        times = [found[tokens] for found in (attention, linear) if tokens in found]
        table.add_row(
            f"{tokens:,}",
            *(f"{found[tokens]:,.3f}" if tokens in found else "" for found in (attention, linear)),
            f"{1000 * sum(times) / tokens:,.2f}",
        )
    console_of().print(table)
