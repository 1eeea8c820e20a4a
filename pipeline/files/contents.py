"""What a file holds, wherever it is: mapped from the disk, or from a copy of a remote one."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa

from pipeline.files.copies import copy_of, mapped
from pipeline.files.storage import AT_ONCE
from pipeline.files.url_path import is_remote


def contents(path: Path) -> pa.Buffer:
    """A file's bytes; those of a local file must not be cut off while they are in use.

    Raises:
        OSError: they cannot be had.
    """
    return copy_of(str(path)) if is_remote(path) else mapped(str(path))


def read_each(paths: Sequence[Path]) -> Iterator[bytes]:
    """What small files hold, in order, of an object store some read ahead; of missing ones b"".

    Raises:
        OSError: one is there and cannot be read.
    """
    if not any(map(is_remote, paths)):
        yield from map(_read, paths)
        return
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for start in range(0, len(paths), AT_ONCE):
            yield from pool.map(_read, paths[start : start + AT_ONCE])


def _read(path: Path) -> bytes:
    return path.read_bytes() if path.is_file() else b""


def map_array(path: Path, dtype: np.dtype[Any]) -> np.ndarray:
    """A file of plain numbers, mapped, read-only."""
    if is_remote(path):
        return np.frombuffer(contents(path), dtype)
    if path.stat().st_size == 0:
        return np.empty(0, dtype)  # an empty file cannot be mapped
    return np.memmap(path, dtype, mode="r").view(np.ndarray)


def parquet_source(path: str | Path) -> Any:
    """What the Parquet library reads a file by: its path, or its bytes where it is remote."""
    if isinstance(path, str | Path):
        return path
    return pa.BufferReader(contents(path))


def open_unbuffered(path: str | Path) -> BinaryIO | io.FileIO:
    """A file to be read in large blocks from its start."""
    return open(path, "rb", buffering=0) if isinstance(path, str | Path) else path.open("rb")
