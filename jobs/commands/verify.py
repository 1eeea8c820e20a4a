"""`steelyard verify`: every law, from the bytes."""

from __future__ import annotations

from jobs import show
from jobs.commands.options import AsJson, Directory, Quiet, print_json
from jobs.progress import Reporter

EXAMPLE = "steelyard verify out/demo"


def verify(
    directory: Directory,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Read everything again, re-check every law; exit 1 with the first offence found."""
    from pipeline.shard.manifest import no_set
    from pipeline.verify import verify as run

    if not any((directory / name).exists() for name in ("manifest.json", "files.parquet")):
        raise no_set(directory)
    report = run(directory, progress=show.progress_lines(Reporter(quiet=quiet)))
    if as_json:
        print_json(show.as_dict(report))
    else:
        show.verified(directory, report)
