"""Opening files, wherever they are: a local path, or a URL that pyarrow or fsspec knows.

A URL is `scheme://host/path?option=value`; the options are pyarrow's (`endpoint_override`, `region`
and others). The path is taken as it stands, nothing in it is an escape. `file://` is a local path.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import BinaryIO, cast
from urllib.parse import unquote

import pyarrow as pa
import xxhash
from pyarrow import fs

_DIGEST_BYTES = 1 << 20
_BUFFER_BYTES = 1 << 22
_OPTIONS = re.compile(r"\?(?=[A-Za-z_]+=)")
_MARKS = ("ETag", "etag", "mtime", "last_modified", "LastModified", "updated", "md5")
"""What fsspec's file systems call that which changes with a file's content."""


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
            marks = {bytes(key): bytes(value) for key, value in (stream.metadata() or {}).items()}
        info = system.get_file_info(inner)
        return f"{info.size}-{info.mtime_ns}-{sorted(marks.items())}"


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
