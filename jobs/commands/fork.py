"""`steelyard fork`: the first steps of a set as a set of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from jobs.commands.options import Directory, Quiet, place
from jobs.progress import Reporter

EXAMPLE = "steelyard fork out/demo --from-step 20 --out out/other"


def fork(
    directory: Directory,
    from_step: Annotated[int, typer.Option(help="The first step that the fork does not hold.")],
    out: Annotated[
        Path, typer.Option(metavar="DIR", parser=place, help="The fork's directory, or its URL.")
    ],
    quiet: Quiet = False,
) -> None:
    """The first steps of a set as a set of its own, to be extended in another way."""
    from jobs.fork import fork as run

    run(directory, from_step, out, Reporter(quiet=quiet))
