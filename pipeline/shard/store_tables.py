"""What a token store says about itself: source.json, and the table of its parts."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from packer.plan import Int64
from pipeline.files.contents import map_array, parquet_source
from pipeline.shard import schema


class StoreError(ValueError):
    """A token store is not whole; the message names the file and, where known, the block."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StoreParts:
    """The columns of parts.parquet, (parts,) each; the part's number is the place."""

    first_doc_id: Int64
    documents: Int64
    tokens: Int64
    file: Int64
    first_record: Int64
    tokens_sha256: tuple[str, ...]
    index_sha256: tuple[str, ...]
    blocks_sha256: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.documents)


def read_identity(directory: Path) -> dict[str, Any]:
    """source.json, of this format and version.

    Raises:
        StoreError: it is missing, or another.
    """
    path = directory / "source.json"
    try:
        identity = json.loads(path.read_bytes())
    except OSError as error:
        raise StoreError(
            f"{path}: {error.strerror or error}; a store without it was not finished, run the job "
            "again"
        ) from error
    except ValueError as error:
        raise StoreError(f"{path} is not JSON: {error}") from error
    found = (identity.get("format"), identity.get("version"))
    if found != (schema.STORE_FORMAT, schema.VERSION):
        raise StoreError(
            f"{path} is of format {found[0]!r}, version {found[1]!r}; this reader knows "
            f"{schema.STORE_FORMAT!r}, version {schema.VERSION}"
        )
    return identity


def read_parts(path: Path) -> StoreParts:
    """parts.parquet.

    Raises:
        StoreError: parts that are not numbered from 0, or documents not end to end.
    """
    table = pq.read_table(parquet_source(path), schema=schema.PARTS)
    numbers = ("first_doc_id", "documents", "tokens", "file", "first_record")
    columns: dict[str, Any] = {name: table[name].to_numpy() for name in numbers}
    for name in ("tokens_sha256", "index_sha256", "blocks_sha256"):
        columns[name] = tuple(table[name].to_pylist())
    parts = StoreParts(**columns)
    first = np.cumsum(parts.documents) - parts.documents
    numbered = np.array_equal(table["part"].to_numpy(), np.arange(len(parts)))
    if not numbered or not np.array_equal(parts.first_doc_id, first):
        raise StoreError(f"{path}: parts must be numbered from 0 and documents end to end")
    return parts


def file_bytes(path: Path) -> int:
    """A file's size, -1 where there is none."""
    return path.stat().st_size if path.is_file() else -1


def map_file(path: Path, dtype: np.dtype, count: int) -> np.ndarray:
    """A file as a read-only array, (count,)."""
    if file_bytes(path) != count * dtype.itemsize:
        raise StoreError(
            f"{path} has {file_bytes(path)} bytes, not {count * dtype.itemsize}; build the store "
            "again"
        )
    return map_array(path, dtype)
