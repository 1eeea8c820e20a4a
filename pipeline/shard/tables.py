"""Reading the small tables of a set, and the error that every reader of the format raises."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.shard.digests import sha256_bytes
from pipeline.shard.schema import FOOTER


class NotInSet(ValueError):
    """A step, slot, rank or degree was asked for that the set does not have."""


class FormatError(ValueError):
    """A file is not what the format or its digest says; the message names it.

    Args:
        message: what was found, and what must hold.
        path: the file, as the reader of the message can open it.
        row_group: the row group at fault, -1 for the footer, None where none is known.
    """

    def __init__(self, message: str, *, path: str | Path, row_group: int | None = None) -> None:
        place = "" if row_group is None else f", {row_group_name(row_group)}"
        super().__init__(f"{path}{place}: {message}")
        self.path = str(path)
        self.row_group = row_group

    def __reduce__(self) -> tuple[Callable[..., FormatError], tuple[object, ...]]:
        return _restored, (type(self), self.args, self.path, self.row_group)


def _restored(
    kind: type[FormatError], args: tuple[object, ...], path: str, row_group: int | None
) -> FormatError:
    """An error that comes from another process, its message as it was."""
    error = kind("", path=path, row_group=row_group)
    error.args = args
    return error


def row_group_name(row_group: int) -> str:
    """A row group as messages call it."""
    return "footer" if row_group == FOOTER else f"row group {row_group}"


def read_bytes(path: Path) -> bytes:
    """A small file whole.

    Raises:
        FormatError: it cannot be read.
    """
    try:
        return path.read_bytes()
    except OSError as error:
        raise FormatError(f"cannot be read: {error.strerror or error}", path=path) from error


def read_table(path: Path, columns: pa.Schema, sha256: str | None = None) -> pa.Table:
    """A table beside the manifest, checked against its digest and the format's columns.

    Raises:
        FormatError: it cannot be read, its digest differs, or its columns are others.
    """
    data = read_bytes(path)
    if sha256 is not None and sha256_bytes(data) != sha256:
        raise FormatError(
            f"its SHA-256 is {sha256_bytes(data)}, but {sha256} is on record; "
            "the file is damaged or was exchanged",
            path=path,
        )
    try:
        table = pq.ParquetFile(pa.BufferReader(data)).read(use_threads=False)
    except MemoryError:  # Arrow's is an ArrowException too, and says nothing of the file
        raise
    except (pa.ArrowException, OSError) as error:
        raise FormatError(f"is not Parquet: {error}", path=path) from error
    check_columns(table.schema, columns, path)
    return table


def check_columns(found: pa.Schema, wanted: pa.Schema, path: Path) -> None:
    """Same names, types and order.

    Raises:
        FormatError: the first column that differs.
    """
    if found.names != wanted.names:
        raise FormatError(f"columns are {found.names}, must be {wanted.names}", path=path)
    for field in wanted:
        if found.field(field.name).type != field.type:
            raise FormatError(
                f"column {field.name!r} is {found.field(field.name).type}, must be {field.type}",
                path=path,
            )
