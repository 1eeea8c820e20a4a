"""`steelyard verify`: every law, from the bytes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from jobs import show
from jobs.commands.options import AsJson, Directory, Quiet, print_json
from jobs.progress import Reporter

EXAMPLE = "steelyard verify out/demo"


def verify(
    directory: Directory,
    sample: Annotated[
        float | None,
        typer.Option(
            metavar="SHARE",
            help="Read only this share of the parts, such as 0.01; says what it did not check.",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the sample.")] = 0,
    workers: Annotated[
        int | None,
        typer.Option(min=1, help="Default: as many as there are cores, for 256 MiB and more."),
    ] = None,
    address: Annotated[
        str | None, typer.Option(help="Of a running Ray cluster; needs --scratch.")
    ] = None,
    scratch: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="For temporary files, about 100 bytes a piece and 8 a document; default: the "
            "system's.",
        ),
    ] = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Read everything again, re-check every law; exit 1 with the first offence found."""
    from jobs.show_sample import sampled
    from jobs.verifying import sample_of, settings_of, verify_set
    from pipeline.shard.manifest import no_set
    from pipeline.verify import SampleReport

    if not any((directory / name).exists() for name in ("manifest.json", "files.parquet")):
        raise no_set(directory)
    report = verify_set(
        directory,
        show.progress_lines(Reporter(quiet=quiet)),
        settings_of(workers, address),
        sample=sample_of(sample, seed),
        scratch=scratch,
    )
    if as_json:
        print_json(show.as_dict(report))
    elif isinstance(report, SampleReport):
        sampled(directory, report)
    else:
        show.verified(directory, report)
