"""`steelyard report`: what a set is worth."""

from __future__ import annotations

from typing import Annotated

import typer

from jobs import show, show_cp
from jobs.commands.options import LOCKSTEP, AsJson, Directory, coupling_of, print_json

EXAMPLE = "steelyard report out/demo --dp-size 8 --pp-size 4"


def report(
    directory: Directory,
    dp_size: Annotated[int | None, typer.Option(min=1, help="Data-parallel ranks.")] = None,
    pp_size: Annotated[int | None, typer.Option(min=1, max=1024, help="Pipeline ranks.")] = None,
    virtual_stages: Annotated[
        int | None, typer.Option(min=1, max=1024, help="Model chunks of a pipeline rank.")
    ] = None,
    lockstep: Annotated[
        bool | None, typer.Option("--lockstep/--no-lockstep", help=LOCKSTEP)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """What a set is worth, beside what other policies make of the same stream."""
    from pipeline.report import report as run

    figures = run(
        directory,
        dp_size=dp_size,
        pp_size=pp_size,
        virtual_stages=virtual_stages,
        coupling=None if lockstep is None else coupling_of(lockstep),
    )
    if as_json:
        print_json(figures)
    else:
        show.report(directory, figures)
        if figures["cp"]:
            show_cp.degrees(figures["cp"])
