"""What a source's files hold, by configuration or by their names."""

from __future__ import annotations

import glob
import os
from collections.abc import Sequence

from pipeline.files.storage import is_url, local_path, split_url
from pipeline.reading import megatron
from pipeline.reading.listing import InputFile, SourceError
from pipeline.reading.records.compressed import COMPRESSIONS
from pipeline.settings.documents import SourceConfig

_JSONL = (".jsonl", ".ndjson", ".json")
_ARROW = (".arrow", ".feather", ".ipc")
_TEXT = (
    *(".txt", ".text", ".md", ".rst", ".tex", ".html", ".xml", ".csv", ".tsv", ".log"),
    *(".py", ".c", ".h", ".cc", ".cpp", ".hpp", ".rs", ".go", ".java", ".js", ".ts", ".sh", ".sql"),
)


def resolve_formats(source: SourceConfig, inputs: Sequence[InputFile]) -> tuple[str, ...]:
    """Each file's format, (files,): as configured, or for "auto" what file names say.

    A source may mix formats, one configured path may not: a README beside records should not
    become a document unasked.

    Raises:
        SourceError: a name that says nothing, or names under one path that say different things.
    """
    if source.format != "auto":
        kind = "arrow" if source.format == "datasets" else source.format
        return (kind,) * len(inputs)
    directories = tuple(filter(None, map(_directory, source.paths)))
    kinds = tuple(_format_of(source, file, directories) for file in inputs)
    first: dict[int, tuple[str, InputFile]] = {}
    for kind, file in zip(kinds, inputs, strict=True):
        known, other = first.setdefault(file.configured, (kind, file))
        if kind != known:
            raise SourceError(
                f"source {source.name!r}: path {source.paths[file.configured]!r} mixes formats: "
                f"{other.name} ({known}), {file.name} ({kind}); set pattern to select files, name "
                'them as paths of their own, or set format to "jsonl", "parquet", "arrow" or "text"'
            )
        if source.token_column is not None and kind not in ("parquet", "arrow"):
            raise SourceError(
                f"source {source.name!r}: token_column is for Parquet and Arrow, but {file.path} "
                f"is {kind}"
            )
    return kinds


def _directory(configured: str) -> str | None:
    """What paths below a configured directory begin with; None where it is something else."""
    path = local_path(configured)
    if is_url(path):
        place, inner, _ = split_url(path)
        return None if glob.has_magic(inner) else f"{place}/{inner}".rstrip("/") + "/"
    return os.path.join(os.path.abspath(path), "") if os.path.isdir(path) else None


def _format_of(source: SourceConfig, file: InputFile, directories: tuple[str, ...]) -> str:
    stem, suffix = os.path.splitext(file.name)
    if suffix in COMPRESSIONS:
        suffix = os.path.splitext(stem)[1]
    if suffix in _JSONL:
        return "jsonl"
    if suffix == ".parquet":
        return "parquet"
    if suffix in _ARROW:
        return "arrow"
    if suffix in megatron.ENDINGS and os.path.isfile(megatron.partner(file.path)):
        raise SourceError(
            f"source {source.name!r}: {file.path} looks like a part of a Megatron dataset; set "
            'format to "megatron", or pattern to select other files'
        )
    if suffix in _TEXT or file.path.startswith(directories):
        return "text"
    raise SourceError(
        f"source {source.name!r}: the name of {file.path} does not say what it holds; set format "
        'to "jsonl", "parquet", "arrow", "text" or "megatron"'
    )
