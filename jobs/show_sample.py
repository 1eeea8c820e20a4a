"""What a sampled verification found, and what it says nothing of."""

from __future__ import annotations

from pathlib import Path

from jobs.show import console_of
from pipeline.verify import SampleReport

_MOST_NUMBERS = 8


def sampled(directory: Path, report: SampleReport) -> None:
    """`steelyard verify --sample`, when no offence was found."""
    console = console_of()
    console.print(
        f"{directory}: no offence in a sample of {report.share:g} (seed {report.seed}): "
        f"{report.bytes:,} of {report.all_bytes:,} bytes read, of {report.files:,} files"
    )
    for of in report.sampled:
        console.print(
            f"sampled: {len(of.parts):,} of {of.of:,} parts of {of.kind}{_named(of.parts)}"
        )
    console.print(f"read: row_groups {report.row_groups:,}, rows {report.rows:,}, "
                  f"tokens {report.tokens:,}")  # fmt: skip
    for title, sentences in (
        ("checked of all", report.whole),
        ("checked of the sample", report.in_sample),
        ("not checked", report.not_checked),
    ):
        console.print(f"{title}:")
        for sentence in sentences:
            console.print(f"  {sentence}")
    console.print(
        f"A single flipped bit is found with a chance of {report.chance:.2g} or more. "
        "Only verify without --sample checks every law."
    )


def _named(parts: tuple[int, ...]) -> str:
    shown = ", ".join(str(part) for part in parts[:_MOST_NUMBERS])
    return f": {shown}{', ..' if len(parts) > _MOST_NUMBERS else ''}" if parts else ""
