"""`steelyard build`: the main job."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from jobs import show
from jobs.commands.options import AsJson, Quiet, print_json
from jobs.progress import Reporter

EXAMPLE = "steelyard build --config jobs/configs/demo.toml --out out/demo"


def build(
    config: Annotated[Path, typer.Option(help="The run's TOML file.")],
    out: Annotated[Path, typer.Option(help="The set's directory.")] = Path("out"),
    override: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="Override a setting, such as mixture.seed=7."
        ),
    ] = None,
    address: Annotated[
        str | None, typer.Option(help="Of a running Ray cluster; as --set job.address=..")
    ] = None,
    dry_run: Annotated[bool, typer.Option(help="Stop after the plan and show it.")] = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Corpora in, balanced shards out. Run again after an interruption, it resumes."""
    from jobs.build import build as run
    from pipeline.config_file import load_config

    reporter = Reporter(quiet=quiet)
    changes = (*(override or ()), *(() if address is None else (f"job.address={address}",)))
    result = run(load_config(config, changes), out, reporter, dry_run=dry_run)
    if as_json:
        print_json(
            {
                "totals": result.plan["totals"],
                "segment": result.plan["segment"],
                "balance": result.balance,
            }
        )
        return
    show.plan(result.plan, result.balance)
    if result.finished:
        reporter.line(f"finished: {out}; next: steelyard verify {out} && steelyard report {out}")
    else:
        reporter.line(f"planned: {out}, nothing is published; without --dry-run it goes on")
