"""Opening files, wherever they are: a local path, or a URL that pyarrow or fsspec knows.

A URL is `scheme://host/path?option=value`; the options are pyarrow's (`endpoint_override`, `region`
and others). The path is taken as it stands, nothing in it is an escape. `file://` is a local path.
"""

from __future__ import annotations

import errno
import glob
import io
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path
from typing import BinaryIO, cast
from urllib.parse import unquote

import pyarrow as pa
import xxhash
from pyarrow import fs

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""What a system says that has no room for more of a file."""
AT_ONCE = 16
"""Requests to an object store."""
_DIGEST_BYTES = 1 << 20
_BUFFER_BYTES = 1 << 22
_OPTIONS = re.compile(r"\?(?=[A-Za-z_]+=)")
_MARKS = ("ETag", "etag", "mtime", "last_modified", "LastModified", "updated", "md5")
"""What fsspec's file systems call that which changes with a file's content."""


_LOCAL = fs.LocalFileSystem()


class StorageError(OSError):
    """A URL cannot be opened or listed; the message says why."""


def is_url(path: str) -> bool:
    """Whether a path is a URL; an absolute, normalised local path never is."""
    return "://" in path


def local_path(path: str) -> str:
    """A local path for a `file://` URL; anything else as it is."""
    if not path.startswith("file://"):
        return path
    return unquote("/" + path.removeprefix("file://").partition("/")[2])


def open_random(path: str) -> BinaryIO:
    """A file to read anywhere in: `read`, `seek`, and `size`; unbuffered."""
    if is_url(path):
        with _clear(path):
            system, inner = locate(path)
            return system.open_input_file(inner)
    return cast(BinaryIO, pa.OSFile(path))


def open_stream(path: str) -> BinaryIO:
    """A file to read from its start, buffered."""
    if not is_url(path):
        return open(path, "rb")
    with _clear(path):
        system, inner = locate(path)
        stream = system.open_input_stream(inner, compression=None)
        return io.BufferedReader(cast(io.RawIOBase, stream), _BUFFER_BYTES)


def digest_file(path: str | Path) -> str:
    """XXH3-128 of a file's content, read in blocks, 32 hex digits."""
    state = xxhash.xxh3_128()
    with open_stream(str(path)) as file:
        while block := file.read(_DIGEST_BYTES):
            state.update(block)
    return state.hexdigest()


def stamp(path: str) -> str | None:
    """What changes when a file changes, without reading it; None where nothing tells.

    Local: size and modification time. Remote: what the store says of the object, such as its ETag.
    """
    if not is_url(path):
        status = Path(path).stat()
        return f"{status.st_size}-{status.st_mtime_ns}"
    with _clear(path):
        system, inner = locate(path)
        if isinstance(system, fs.PyFileSystem):
            known = system.handler.fs.info(inner)
            marks = {name: str(known[name]) for name in _MARKS if known.get(name)}
            return f"{known.get('size')}-{sorted(marks.items())}" if marks else None
        with system.open_input_stream(inner, compression=None) as stream:
            marks = {str(key): str(value) for key, value in (stream.metadata() or {}).items()}
        info = system.get_file_info(inner)
        return f"{info.size}-{info.mtime_ns}-{sorted(marks.items())}"


def file_size(url: str) -> int | None:
    """Bytes of the file at a URL; None where there is a directory, or nothing."""
    with _clear(url):
        system, inner = locate(url)
        info = system.get_file_info(inner)
        if info.type != fs.FileType.File:
            return None
        if info.size is None:
            raise StorageError("its server does not say how long it is; copy it first")
        return info.size


def list_files(url: str, *, recursive: bool = True, hidden: bool = False) -> dict[str, int]:
    """Bytes of the files below a URL by relative name; hidden ones are passed over, or not."""
    with _clear(url):
        system, inner = locate(url)
        base = inner.rstrip("/")
        selector = fs.FileSelector(base, recursive=recursive, allow_not_found=True)
        files = [info for info in system.get_file_info(selector) if info.type == fs.FileType.File]
        for info in files:
            if info.size is None:
                raise StorageError(f"nothing says how long {info.path} is; copy it first")
    names = [info.path.lstrip("/").removeprefix(base.lstrip("/")).lstrip("/") for info in files]
    return {
        name: info.size
        for name, info in zip(names, files, strict=True)
        if hidden or not any(part.startswith(".") for part in name.split("/"))
    }


def match_files(url: str) -> tuple[str, dict[str, int]]:
    """What a glob in a URL's path matches: the URL before the first wildcard, and names below it.

    `*`, `?` and `[...]` stay inside a name, `**` stands for any directories.
    """
    place, path, options = split_url(url)
    parts = path.split("/")
    first = next(number for number, part in enumerate(parts) if glob.has_magic(part))
    root = f"{place}/{'/'.join(parts[:first])}{options}"
    sizes = list_files(root, recursive=len(parts) > first + 1 or parts[-1] == "**")
    wanted = parts[first:]
    return root, {name: sizes[name] for name in sizes if _matches(name.split("/"), wanted)}


def _matches(parts: Sequence[str], pattern: Sequence[str]) -> bool:
    if not pattern:
        return not parts
    if pattern[0] == "**":
        return any(_matches(parts[start:], pattern[1:]) for start in range(len(parts) + 1))
    return bool(parts) and fnmatchcase(parts[0], pattern[0]) and _matches(parts[1:], pattern[1:])


def read(path: str) -> bytes:
    """A small file whole."""
    with open_stream(path) as file:
        if not is_url(path):
            return file.read()
        with _clear(path):
            return file.read()


def download(url: str, path: str) -> None:
    """Copy the file at a URL to a local path.

    Raises:
        StorageError: it cannot be had.
        OSError: there is no room for it, in a line that names the path.
    """
    try:
        with _clear(url):
            system, inner = locate(url)
            fs.copy_files(inner, path, source_filesystem=system, destination_filesystem=_LOCAL)
    except StorageError as error:
        number = getattr(error.__cause__, "errno", None)
        if number not in FULL:
            raise
        reason = f"{os.strerror(number)}; make room, then run the same command again"
        raise OSError(number, reason, path) from error


def upload(path: str, url: str) -> None:
    """Copy a local file to a URL."""
    with _clear(url):
        system, inner = locate(url)
        fs.copy_files(path, inner, source_filesystem=_LOCAL, destination_filesystem=system)


def copy(url: str, to: str) -> None:
    """Copy a file; inside one store the store does it."""
    with _clear(to):
        (system, inner), (other, target) = locate(url), locate(to)
        if system == other:
            system.copy_file(inner, target)
        else:
            fs.copy_files(inner, target, source_filesystem=system, destination_filesystem=other)


def move(url: str, to: str) -> None:
    """Give a file another name in the same store: a copy, then a deletion."""
    copy(url, to)
    delete(url)


def delete(url: str) -> bool:
    """Delete the file at a URL; whether there was one."""
    with _clear(url):
        system, inner = locate(url)
        try:
            system.delete_file(inner)
        except FileNotFoundError:
            return False
    return True


def parent_url(url: str) -> str:
    """The URL of the directory that holds a file."""
    place, path, options = split_url(url)
    return f"{place}/{path.rpartition('/')[0]}{options}"


def split_url(url: str) -> tuple[str, str, str]:
    """A URL's `scheme://host`, its path without the first slash, and its `?options` or nothing."""
    whole, options = url, ""
    if found := _OPTIONS.search(url):
        whole, options = url[: found.start()], url[found.start() :]
    scheme, _, rest = whole.partition("://")
    host, _, path = rest.partition("/")
    return f"{scheme}://{host}", path, options


def join_url(url: str, name: str) -> str:
    """The URL of a file below a URL; the options stay at its end."""
    place, path, options = split_url(url)
    parts = [part for part in (path.rstrip("/"), name) if part]
    return f"{place}/{'/'.join(parts)}{options}"


def locate(url: str) -> tuple[fs.FileSystem, str]:
    """A URL's file system, and what the file is called there."""
    place, path, options = split_url(url)
    found, root = _file_system(place, options)
    if isinstance(found, fs.PyFileSystem):
        return found, found.handler.fs._strip_protocol(url)
    return found, f"{root.rstrip('/')}/{path}"


@lru_cache(maxsize=64)
def _file_system(place: str, options: str) -> tuple[fs.FileSystem, str]:
    """The file system of pyarrow for a place, or fsspec's where pyarrow has none."""
    try:
        return fs.FileSystem.from_uri(f"{place}/{options}")
    except pa.ArrowInvalid as error:
        if "Unrecognized filesystem type" not in str(error):
            raise
    try:
        import fsspec
    except ImportError as error:
        raise StorageError("needs the package fsspec: install steelyard[remote]") from error
    return fs.PyFileSystem(fs.FSSpecHandler(fsspec.filesystem(place.partition("://")[0]))), ""


@contextmanager
def _clear(url: str) -> Iterator[None]:
    """Errors of a file system as one line with the URL."""
    try:
        yield
    except StorageError as error:
        raise StorageError(f"{url}: {error}") from error
    except Exception as error:  # fsspec's file systems raise what their libraries raise
        lines = str(error).splitlines() or [type(error).__name__]
        raise StorageError(f"{url} cannot be reached: {lines[0]}") from error
