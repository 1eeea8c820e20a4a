"""`steelyard train`: the thin trainer."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from jobs.commands.options import place

EXAMPLE = (
    "steelyard train --shards out/train-shards --config jobs/configs/train.toml "
    "--set mesh.cp_size=1 --set mesh.pp_size=1 (more ranks: torchrun --nproc-per-node 4 -m trainer)"
)


def train(
    shards: Annotated[
        Path, typer.Option(metavar="DIR", parser=place, help="The set's directory, or its URL.")
    ],
    config: Annotated[Path, typer.Option(metavar="FILE", help="The run's TOML file.")],
    override: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Override a setting, such as run.steps=9."),
    ] = None,
) -> None:
    """Train a model on a set; one process a rank, started by torchrun."""
    from trainer.launch import launch

    raise typer.Exit(launch(shards, config, tuple(override or ())))
