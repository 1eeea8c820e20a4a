"""A URL in the place of a `Path`: what readers and writers of a set use of one.

An object store has no directories and no rename. A name is there when an object has it; what lists
"below" a URL are the objects whose names begin with it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import total_ordering
from pathlib import Path, PurePosixPath
from typing import BinaryIO, cast

import pyarrow as pa

from pipeline.files.copies import copy_of
from pipeline.files.storage import (
    delete,
    file_size,
    is_url,
    join_url,
    list_files,
    local_path,
    parent_url,
    read,
    split_url,
)


@dataclass(frozen=True, slots=True)
class Status:
    """What is known of an object: its bytes."""

    st_size: int


@total_ordering
class UrlPath:
    """The part of `pathlib.Path` that has a meaning in an object store.

    It is not `os.PathLike`, so whatever would take it for a local path fails at once.
    """

    def __init__(self, url: str) -> None:
        place, path, options = split_url(url)
        self._url = f"{place}/{path.rstrip('/')}{options}"

    def __truediv__(self, name: str | PurePosixPath) -> UrlPath:
        return UrlPath(join_url(self._url, str(name)))

    def __str__(self) -> str:
        return self._url

    def __repr__(self) -> str:
        return f"UrlPath({self._url!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, UrlPath) and self._url == other._url

    def __lt__(self, other: UrlPath) -> bool:
        return self._url < other._url

    def __hash__(self) -> int:
        return hash(self._url)

    @property
    def name(self) -> str:
        return split_url(self._url)[1].rpartition("/")[2]

    @property
    def stem(self) -> str:
        return PurePosixPath(self.name).stem

    @property
    def parent(self) -> UrlPath:
        return UrlPath(parent_url(self._url))

    def with_name(self, name: str) -> UrlPath:
        return self.parent / name

    def with_suffix(self, suffix: str) -> UrlPath:
        return self.with_name(f"{self.stem}{suffix}")

    def as_posix(self) -> str:
        return self._url

    def resolve(self) -> UrlPath:
        """Itself: a URL is absolute, and nothing links to it."""
        return self

    def is_absolute(self) -> bool:
        return True

    def relative_to(self, other: UrlPath) -> PurePosixPath:
        """The rest of its path below another.

        Raises:
            ValueError: it is not below it.
        """
        mine, others = split_url(self._url), split_url(str(other))
        base = f"{others[1].rstrip('/')}/".lstrip("/")
        if mine[0] != others[0] or mine[2] != others[2] or not f"{mine[1]}/".startswith(base):
            raise ValueError(f"{self} is not below {other}")
        return PurePosixPath(mine[1][len(base) :] or ".")

    def is_relative_to(self, other: object) -> bool:
        """Whether it is below another URL; never below a local path."""
        if not isinstance(other, UrlPath):
            return False
        try:
            self.relative_to(other)
        except ValueError:
            return False
        return True

    def exists(self) -> bool:
        """Whether there is an object of this name."""
        return file_size(self._url) is not None

    def is_file(self) -> bool:
        return self.exists()

    def stat(self) -> Status:
        """Its bytes.

        Raises:
            FileNotFoundError: there is no such object.
        """
        size = file_size(self._url)
        if size is None:
            raise FileNotFoundError(2, os.strerror(2), self._url)
        return Status(size)

    def read_bytes(self) -> bytes:
        """A small object, whole."""
        return read(self._url)

    def open(self, mode: str = "rb") -> BinaryIO:
        """Read it, anywhere, from a local copy of the whole.

        Raises:
            ValueError: another mode; writers go through `atomic_path`.
        """
        if mode != "rb":
            raise ValueError(f"{self} cannot be opened with mode {mode!r}; it is written whole")
        return cast(BinaryIO, pa.BufferReader(copy_of(self._url)))

    def unlink(self, missing_ok: bool = False) -> None:
        """Delete the object.

        Raises:
            FileNotFoundError: there is none, and `missing_ok` is false.
        """
        if not delete(self._url) and not missing_ok:
            raise FileNotFoundError(2, os.strerror(2), self._url)

    def mkdir(self, *, parents: bool = False, exist_ok: bool = False) -> None:
        """Nothing: an object store has no directories."""

    def files_below(self) -> dict[str, int]:
        """Bytes of all objects below, hidden ones too, by relative name."""
        return list_files(self._url, hidden=True)

    def glob(self, pattern: str) -> Iterator[UrlPath]:
        """Objects below whose relative names match; `*` stays inside a name."""
        wanted = pattern.split("/")
        for name in sorted(self.files_below()):
            parts = name.split("/")
            if len(parts) == len(wanted) and all(map(fnmatchcase, parts, wanted)):
                yield self / name

    def rglob(self, pattern: str) -> Iterator[UrlPath]:
        """Objects at any depth below whose last name matches."""
        for name in sorted(self.files_below()):
            if fnmatchcase(name.rpartition("/")[2], pattern):
                yield self / name


def as_path(place: str | Path) -> Path:
    """A place by its path or URL; a URL gives a `UrlPath`, `file://` a local path."""
    name = local_path(str(place))
    return cast(Path, UrlPath(name)) if is_url(name) else Path(name)


def is_remote(path: Path) -> bool:
    """Whether `as_path` made it of a URL."""
    return not isinstance(path, Path)


def below(directory: Path, place: str) -> Path:
    """A place that is named relative to a directory, or by a path or URL of its own."""
    return as_path(place) if is_url(place) or os.path.isabs(place) else directory / place


def is_inside(path: Path, directory: Path) -> bool:
    """Whether a place is a directory, or somewhere in it."""
    return is_remote(path) == is_remote(directory) and path.is_relative_to(directory)
