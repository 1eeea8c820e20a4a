"""What several commands have in common."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from packer.schedule import Coupling

LOCKSTEP = "Data-parallel ranks wait for each other at every micro-batch."
KV_EXCHANGE = (
    "Exposed time of a key-value token that a CP rank receives, in linear-token equivalents."
)
Directory = Annotated[Path, typer.Argument(metavar="DIR", help="The set's directory.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
Quiet = Annotated[bool, typer.Option(help="No progress.")]


def coupling_of(lockstep: bool) -> Coupling:
    """How data-parallel ranks wait for each other."""
    return "lockstep" if lockstep else "gradient_sync"


def print_json(value: Any) -> None:
    """A result on stdout."""
    sys.stdout.write(json.dumps(value, indent=1) + "\n")
