"""`steelyard extend`: one more segment for a finished set."""

from __future__ import annotations

from pathlib import Path
from shlex import quote
from typing import Annotated

import typer

from jobs import show
from jobs.commands.options import (
    Address,
    AsJson,
    Directory,
    DryRun,
    Override,
    Quiet,
    changes_of,
    print_planned,
)
from jobs.progress import Reporter

EXAMPLE = "steelyard extend out/demo --config next.toml --set mixture.seed=1"


def extend(
    directory: Directory,
    config: Annotated[Path, typer.Option(help="The segment's TOML file.")],
    override: Override = None,
    address: Address = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """One more segment, with a configuration of its own, from what has not run."""
    from jobs.extend import extend as run
    from pipeline.extending import segment_config
    from pipeline.shard.manifest import load_manifest

    reporter = Reporter(quiet=quiet)
    changes = changes_of(override, address)
    settings = segment_config(load_manifest(directory), config, changes)
    result = run(settings, directory, reporter, dry_run=dry_run)
    if as_json:
        print_planned(result)
        return
    show.plan(result.plan, result.balance)
    if result.finished:
        reporter.line(f"extended: {directory}; next: steelyard verify {quote(str(directory))}")
    else:
        reporter.line(f"planned: {directory}, nothing is published; without --dry-run it goes on")
