"""`steelyard build`: the main job."""

from __future__ import annotations

from pathlib import Path
from shlex import quote
from typing import Annotated

import typer

from jobs import show
from jobs.commands.options import (
    Address,
    AsJson,
    DryRun,
    Out,
    Override,
    Quiet,
    changes_of,
    print_planned,
)
from jobs.progress import Reporter

EXAMPLE = "steelyard build --config jobs/configs/demo.toml --out out/demo"


def build(
    config: Annotated[Path, typer.Option(help="The run's TOML file.")],
    out: Out = Path("out"),
    override: Override = None,
    address: Address = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Corpora in, balanced shards out. Run again after an interruption, it resumes."""
    from jobs.build import build as run
    from pipeline.config_file import load_config

    reporter = Reporter(quiet=quiet)
    changes = changes_of(override, address)
    result = run(load_config(config, changes), out, reporter, dry_run=dry_run)
    if as_json:
        print_planned(result)
        return
    show.plan(result.plan, result.balance)
    if result.finished:
        place = quote(str(out))
        reporter.line(
            f"finished: {out}; next: steelyard verify {place} && steelyard report {place}"
        )
    else:
        reporter.line(f"planned: {out}, nothing is published; without --dry-run it goes on")
