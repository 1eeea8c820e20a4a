"""Which files a source has, in the order of its documents."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from pipeline.config import SourceConfig
from pipeline.saved_datasets import SavedDatasetError, data_files


class SourceError(ValueError):
    """A source's files are not what the configuration says; the message says what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InputFile:
    """One file of a source; its place in the list of all is its row in inputs.parquet.

    `name` is relative to the configured path, with `/`; `path` is absolute; `configured` says which
    of the source's paths it belongs to.
    """

    name: str
    path: str
    bytes: int
    configured: int


def list_inputs(source: SourceConfig) -> tuple[InputFile, ...]:
    """The files of a source, in the order of its documents.

    Configured paths in their order; what a directory or a glob holds, in byte order of relative
    path. `pattern` selects files of directories by name; hidden files are passed over. Where files
    of two configured paths would have one name, the path's number is put before every name.

    Raises:
        SourceError: a path that is missing, remote or matches nothing, or a file listed twice.
    """
    listed = [list(_expand(source, path)) for path in source.paths]
    names = [name for files in listed for name, _ in files]
    ambiguous = len(set(names)) < len(names)
    inputs: list[InputFile] = []
    seen: dict[str, str] = {}
    for number, (configured, files) in enumerate(zip(source.paths, listed, strict=True)):
        for name, path in files:
            real = os.path.realpath(path)
            if real in seen:
                raise SourceError(
                    f"source {source.name!r}: {path} is listed twice, by {seen[real]!r} and by "
                    f"{configured!r}; remove one of the two paths or links"
                )
            seen[real] = configured
            inputs.append(
                InputFile(
                    name=f"{number}/{name}" if ambiguous else name,
                    path=path,
                    bytes=os.path.getsize(path),
                    configured=number,
                )
            )
    return tuple(inputs)


def _expand(source: SourceConfig, configured: str) -> Iterator[tuple[str, str]]:
    """Names and absolute paths of the files of one configured path, in order."""
    place = f"source {source.name!r}: path {configured!r}"
    if "://" in configured:
        raise SourceError(f"{place} is remote; copy or mount it and give a local path")
    path = os.path.abspath(configured)
    if os.path.isfile(path):
        root, names = os.path.dirname(path), [os.path.basename(path)]
    elif os.path.isdir(path):
        root, names = path, _selected(source, place, path)
        place += f" with pattern {source.pattern!r}"
    elif glob.has_magic(configured):
        root = _glob_root(path)
        found = (match for match in glob.iglob(path, recursive=True) if os.path.isfile(match))
        names = sorted({os.path.relpath(match, root).replace(os.sep, "/") for match in found})
    else:
        raise SourceError(f"{place} does not exist; correct it or create the file")
    if not names:
        raise SourceError(f"{place} matches no file; correct it or remove it")
    for name in sorted(names, key=os.fsencode):
        if not _is_unicode(name):
            raise SourceError(f"{place} holds {name!r}, which is not UTF-8; rename the file")
        yield name, os.path.join(root, name)


def _selected(source: SourceConfig, place: str, directory: str) -> list[str]:
    """Names of a directory's files of data that `pattern` selects."""

    def read(name: str) -> bytes:
        return Path(directory, name).read_bytes()

    try:
        names = data_files(_walk(directory, "", ()), read)
    except SavedDatasetError as error:
        raise SourceError(f"{place}: {error}") from error
    return [name for name in names if fnmatchcase(name.rpartition("/")[2], source.pattern)]


def _is_unicode(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:  # a byte that the file system could not decode
        return False
    return True


def _glob_root(path: str) -> str:
    """The directory above the first wildcard of an absolute glob."""
    root = path
    while glob.has_magic(root):
        root = os.path.dirname(root)
    return root


def _walk(root: str, prefix: str, above: tuple[str, ...]) -> Iterator[str]:
    """Relative names of all files that are not hidden; linked directories are entered."""
    real = os.path.realpath(os.path.join(root, prefix))
    if real in above:
        raise SourceError(f"{os.path.join(root, prefix)} links to a directory above it; remove it")
    with os.scandir(real) as entries:
        for entry in entries:
            if entry.name.startswith("."):
                continue
            if entry.is_dir():
                yield from _walk(root, f"{prefix}{entry.name}/", (*above, real))
            elif entry.is_file():
                yield prefix + entry.name
