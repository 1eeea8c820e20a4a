"""Ranges of bytes of a file, mapped from the disk or fetched from an object store."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any, Protocol, cast

import pyarrow as pa

from pipeline.files.copies import mapped
from pipeline.files.storage import StorageError, open_random
from pipeline.files.url_path import is_remote


class FileBytes(Protocol):
    """An open file of a known size."""

    size: int
    source: Any
    """What the Parquet library may read: of a remote file only what was shown last."""

    def read(self, offset: int, length: int) -> pa.Buffer:
        """Bytes `[offset, offset + length)`.

        Raises:
            OSError: they cannot be had.
        """
        ...

    def show(self, data: pa.Buffer, base: int) -> None:
        """Let `source` give these bytes, which were read from `base` on."""
        ...


def open_bytes(path: Path) -> FileBytes:
    """Open a file for ranges of it.

    Raises:
        OSError: it is missing or cannot be reached.
    """
    return _Fetched(str(path)) if is_remote(path) else _Mapped(path)


class _Mapped:
    def __init__(self, path: Path) -> None:
        self._buffer = mapped(str(path))
        self.size: int = self._buffer.size
        self.source: Any = pa.BufferReader(self._buffer)

    def read(self, offset: int, length: int) -> pa.Buffer:
        return self._buffer.slice(offset, length)

    def show(self, data: pa.Buffer, base: int) -> None:
        pass  # all of it can be seen


class _Fetched:
    """Each range is one request."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._file = cast(Any, open_random(url))
        self.size: int = self._file.size()
        self.source: Any = Window(self.size)

    def read(self, offset: int, length: int) -> pa.Buffer:
        data = self._file.read_at(length, offset)
        if len(data) != length:
            raise StorageError(f"{self._url} ends after {len(data)} of {length} bytes")
        return pa.py_buffer(data)

    def show(self, data: pa.Buffer, base: int) -> None:
        self.source.show(data, base)


class Window(io.RawIOBase):
    """A file of which only the bytes shown last can be read: those that were found intact."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self._data, self._base, self._size = pa.py_buffer(b""), 0, size
        self._at = 0

    def show(self, data: pa.Buffer, base: int) -> None:
        """Show these bytes of the file, which begin at `base`."""
        self._data, self._base = data, base

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = start + offset
        return self._at

    def read(self, size: int = -1) -> bytes:
        begin = self._at - self._base
        stop = self._data.size if size < 0 else begin + size
        if begin < 0 or stop > self._data.size:
            raise OSError(f"bytes {self._at} to {self._base + stop} are not in this row group")
        self._at = self._base + stop
        return self._data.slice(begin, stop - begin).to_pybytes()
