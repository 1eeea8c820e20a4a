"""What a file holds, in memory that the system pages in: a local file, or a copy of a remote one.

A copy lies in the system's directory for temporary files (`TMPDIR`) without a name, so it is gone
with whoever maps it, however that ends. The last few are kept: who reads an object for its digest
and then for what it says fetches it once.
"""

from __future__ import annotations

import os
import tempfile
from functools import lru_cache

import pyarrow as pa

from pipeline.files.storage import download, stamp

_KEPT = 4


def copy_of(url: str) -> pa.Buffer:
    """The bytes of an object, from a local copy.

    Raises:
        StorageError: it cannot be had.
        OSError: there is no room for the copy.
    """
    known = stamp(url)
    return _fetched(url) if known is None else _copy_as_of(url, known)


@lru_cache(maxsize=_KEPT)
def _copy_as_of(url: str, _stamp: str) -> pa.Buffer:
    """A copy of the object as it was stamped."""
    return _fetched(url)


def _fetched(url: str) -> pa.Buffer:
    handle, name = tempfile.mkstemp(prefix="steelyard-copy-")
    os.close(handle)
    try:
        download(url, name)
        return mapped(name)
    finally:
        os.unlink(name)  # what is mapped stays until it is not


def mapped(path: str) -> pa.Buffer:
    """A local file's bytes, mapped."""
    with pa.memory_map(path) as file:
        return file.read_buffer()
