"""What several commands have in common."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from jobs.build import BuildResult
    from packer.schedule import Coupling

LOCKSTEP = "Data-parallel ranks wait for each other at every micro-batch."
KV_EXCHANGE = (
    "Exposed time of a key-value token that a CP rank receives, in linear-token equivalents."
)


def place(text: str) -> Path:
    """A path, or what stands for one where it is a URL."""
    from pipeline.files.url_path import as_path

    return as_path(text)


Directory = Annotated[
    Path, typer.Argument(metavar="DIR", parser=place, help="The set's directory, or its URL.")
]
Out = Annotated[
    Path, typer.Option(metavar="DIR", parser=place, help="The set's directory, or its URL.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
Quiet = Annotated[bool, typer.Option(help="No progress.")]
Override = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override a setting, such as mixture.seed=7."),
]
Address = Annotated[
    str | None, typer.Option(help="Of a running Ray cluster; as --set job.address=..")
]
DryRun = Annotated[bool, typer.Option(help="Stop after the plan and show it.")]


def changes_of(override: list[str] | None, address: str | None) -> tuple[str, ...]:
    """Settings that the command line changes, as `--set` has them."""
    return (*(override or ()), *(() if address is None else (f"job.address={address}",)))


def print_planned(result: BuildResult) -> None:
    """What a build or an extension planned, as JSON."""
    plan = result.plan
    print_json({"totals": plan["totals"], "segment": plan["segment"], "balance": result.balance})


def coupling_of(lockstep: bool) -> Coupling:
    """How data-parallel ranks wait for each other."""
    return "lockstep" if lockstep else "gradient_sync"


def print_json(value: Any) -> None:
    """A result on stdout."""
    sys.stdout.write(json.dumps(value, indent=1) + "\n")
