"""Records sorted into buckets on disk, so that a sort of all of them never needs them all."""

from __future__ import annotations

from pathlib import Path

import numpy as np


class Spool:
    """Append-only buckets of records, a file each.

    Args:
        directory: an existing directory for the files.
        name: what their names start with.
        dtype: of a record.
    """

    def __init__(self, directory: Path, name: str, dtype: np.dtype) -> None:
        self._directory = directory
        self._name = name
        self._dtype = dtype

    def add(self, bucket: np.ndarray, records: np.ndarray) -> None:
        """Append records, each to its bucket; bucket numbers are int64, (records,)."""
        if not len(records):
            return
        order = np.argsort(bucket, kind="stable")
        bucket, records = bucket[order], records[order]
        first = np.flatnonzero(np.diff(bucket, prepend=-1))
        for start, stop in zip(first, [*first[1:], len(bucket)], strict=True):
            with self._path(int(bucket[start])).open("ab") as file:
                file.write(records[start:stop].tobytes())

    def take(self, bucket: int) -> np.ndarray:
        """The records of a bucket in the order in which they came; its file is removed."""
        path = self._path(bucket)
        if not path.exists():
            return np.empty(0, self._dtype)
        records = np.fromfile(path, self._dtype)
        path.unlink()
        return records

    def read(self, bucket: int) -> np.ndarray:
        """The records of a bucket in the order in which they came; they stay."""
        path = self._path(bucket)
        return np.fromfile(path, self._dtype) if path.exists() else np.empty(0, self._dtype)

    def _path(self, bucket: int) -> Path:
        return self._directory / f"{self._name}-{bucket}"
