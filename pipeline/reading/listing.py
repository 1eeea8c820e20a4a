"""Which files a source has, in the order of its documents."""

from __future__ import annotations

import glob
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from pipeline.files import storage
from pipeline.reading import megatron
from pipeline.reading.hub_datasets import DatasetError, arrow_files
from pipeline.reading.saved_datasets import STATE, SavedDatasetError, data_files
from pipeline.reading.source_error import SourceError
from pipeline.settings.documents import SourceConfig


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
        SourceError: a path that is missing or matches nothing, or a file listed twice.
        StorageError: a URL that cannot be reached.
    """
    listed = [list(_expand(source, path)) for path in source.paths]
    names = [name for files in listed for name, _, _ in files]
    ambiguous = len(set(names)) < len(names)
    inputs: list[InputFile] = []
    seen: dict[str, str] = {}
    for number, (configured, files) in enumerate(zip(source.paths, listed, strict=True)):
        for name, path, num_bytes in files:
            real = path if storage.is_url(path) else os.path.realpath(path)
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
                    bytes=num_bytes,
                    configured=number,
                )
            )
    return tuple(inputs)


def _expand(source: SourceConfig, configured: str) -> Iterator[tuple[str, str, int]]:
    """Names, absolute paths or URLs, and bytes of the files of one configured path, in order."""
    place = f"source {source.name!r}: path {configured!r}"
    if source.format == "datasets":
        if not os.path.isfile(os.path.join(configured, STATE)):
            yield from _expand_dataset(source, configured, place)
            return
        if source.dataset_config or source.dataset_split:
            raise SourceError(
                f"{place} is a directory of save_to_disk, which is one split; remove "
                "dataset_config and dataset_split"
            )
    given = storage.local_path(configured)
    if storage.is_url(given):
        if source.format == "megatron":
            raise SourceError(
                f"{place} is remote, but a Megatron dataset is mapped; copy or mount it and give a "
                "local path"
            )
        yield from _expand_url(source, given, place)
        return
    path = os.path.abspath(given)
    if source.format == "megatron":
        path = megatron.listed(path)
    if os.path.isfile(path):
        root, names = os.path.dirname(path), [os.path.basename(path)]
    elif os.path.isdir(path):
        root, names = (
            path,
            _selected(
                source, place, _walk(path, "", ()), lambda name: Path(path, name).read_bytes()
            ),
        )
        place += f" with pattern {source.pattern!r}"
    elif glob.has_magic(given):
        root = _glob_root(path)
        found = (match for match in glob.iglob(path, recursive=True) if os.path.isfile(match))
        names = sorted({os.path.relpath(match, root).replace(os.sep, "/") for match in found})
    else:
        raise SourceError(f"{place} does not exist; correct it or create the file")
    if source.format == "megatron":
        names = megatron.pairs(root, names)
        place += ' with format "megatron"'
    if not names:
        raise SourceError(f"{place} matches no file; correct it or remove it")
    for name in sorted(names, key=os.fsencode):
        if not _is_unicode(name):
            raise SourceError(f"{place} holds {name!r}, which is not UTF-8; rename the file")
        path = os.path.join(root, name)
        yield name, path, os.path.getsize(path)


def _expand_dataset(source: SourceConfig, path: str, place: str) -> Iterator[tuple[str, str, int]]:
    """The same for what the package `datasets` loads, in the order of its rows."""
    try:
        files = arrow_files(
            path, config=source.dataset_config, split=source.dataset_split or "train"
        )
    except DatasetError as error:
        raise SourceError(f"{place}: {error}") from error
    for file in files:
        yield os.path.basename(file), os.path.abspath(file), os.path.getsize(file)


def _expand_url(source: SourceConfig, url: str, place: str) -> Iterator[tuple[str, str, int]]:
    """The same for a URL: a file, a directory, or a glob where the store can list."""
    size = storage.file_size(url)
    if size is not None:
        root, sizes = storage.parent_url(url), {storage.split_url(url)[1].rpartition("/")[2]: size}
    elif glob.has_magic(storage.split_url(url)[1]):
        root, sizes = storage.match_files(url)
    else:
        root, sizes = url, storage.list_files(url)
        kept = _selected(
            source, place, sizes, lambda name: storage.read(storage.join_url(url, name))
        )
        sizes = {name: sizes[name] for name in kept}
    if not sizes:
        raise SourceError(f"{place} matches no file; correct it or remove it")
    for name in sorted(sizes, key=str.encode):
        yield name, storage.join_url(root, name), sizes[name]


def _selected(
    source: SourceConfig, place: str, names: Iterable[str], read: Callable[[str], bytes]
) -> list[str]:
    """Which of a directory's files are data that `pattern` selects."""
    try:
        data = data_files(names, read)
    except SavedDatasetError as error:
        raise SourceError(f"{place}: {error}") from error
    return [name for name in data if fnmatchcase(name.rpartition("/")[2], source.pattern)]


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
