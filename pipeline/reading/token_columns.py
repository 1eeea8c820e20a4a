"""Columns of token ids: a list of integers a row, in Parquet and in Arrow files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from packer.plan import Int64
from pipeline.reading.arrow_ipc import ArrowError, read_batches
from pipeline.reading.parquet import opened
from pipeline.reading.source_error import SourceError

_BATCH_BYTES = 1 << 20
_BATCH_ROWS = 1024


def check_token_column(path: str, schema: pa.Schema, token_column: str) -> None:
    """Require that a table has one column of this name, and lists of integers in it.

    Raises:
        SourceError: none, several, or of another type; the message names those that would do.
    """
    count = schema.names.count(token_column)
    column = schema.field(token_column).type if count == 1 else None
    if column is not None and holds_ids(column):
        return
    found = "has no such column"
    if count > 1:
        found = f"has {count} of that name"
    elif column is not None:
        found = f"holds {column} there, not lists of integers"
    names = [field.name for field in schema if holds_ids(field.type)]
    raise SourceError(
        f"{path}: token_column is {token_column!r} but the file {found}; columns with lists of "
        f"integers: {', '.join(names) or 'none'}"
    )


@contextmanager
def open_token_parquet(path: str, token_column: str) -> Iterator[pq.ParquetFile]:
    """Open a Parquet file that has a column of token ids.

    Raises:
        SourceError: not Parquet, or no such column of lists of integers.
    """
    with opened(path) as file:
        check_token_column(path, file.schema_arrow, token_column)
        yield file


def row_group_bytes(path: str, token_column: str) -> list[int]:
    """Uncompressed bytes of the token column in each row group.

    Raises:
        SourceError: as `open_token_parquet`.
    """
    with open_token_parquet(path, token_column) as file:
        return [_group_bytes(file, token_column, g) for g in range(file.metadata.num_row_groups)]


def read_parquet_columns(path: str, token_column: str, groups: Sequence[int]) -> Iterator[pa.Array]:
    """The token column of some row groups, in batches of about a MiB or of one row.

    Raises:
        SourceError: the file cannot be read.
    """
    with open_token_parquet(path, token_column) as file:
        rows = sum(file.metadata.row_group(group).num_rows for group in groups)
        size = sum(_group_bytes(file, token_column, group) for group in groups)
        batch_size = min(max(1, rows * _BATCH_BYTES // max(size, 1)), _BATCH_ROWS)
        try:
            for batch in file.iter_batches(
                batch_size=batch_size,
                row_groups=list(groups),
                columns=[token_column],
                use_threads=False,
            ):
                yield batch.column(0)
        except MemoryError:  # Arrow's is an ArrowException too, and says nothing of the file
            raise
        except (pa.ArrowException, OSError) as error:
            raise SourceError(
                f"{path}: row groups {groups[0]} to {groups[-1]} cannot be read: {error}; replace "
                "the file or remove it"
            ) from error


def read_arrow_columns(path: str, token_column: str, start: int, stop: int) -> Iterator[pa.Array]:
    """The token column of the record batches whose first byte is in `[start, stop)`, in slices.

    Raises:
        SourceError: the file cannot be read.
    """
    try:
        for batch in read_batches(path, start, stop, [token_column]):
            for row in range(0, batch.num_rows, _BATCH_ROWS):
                yield batch.column(0).slice(row, _BATCH_ROWS)
    except MemoryError:  # Arrow's is an ArrowException too, and says nothing of the file
        raise
    except (ArrowError, pa.ArrowException, OSError) as error:
        raise SourceError(
            f"{path}: record batches in bytes {start} to {stop - 1} cannot be read: {error}; "
            "replace the file or remove it"
        ) from error


def column_ids(column: pa.Array) -> tuple[np.ndarray, np.ndarray, Int64, np.ndarray]:
    """The ids of a column, row after row.

    Args:
        column: lists of integers of any list type, (rows,).

    Returns:
        Ids back to back, 0 where one is null; which of them are not null, (ids,); how many each row
        has, 0 for a null row, (rows,); which rows are not null, (rows,).
    """
    flat: Any = pc.call_function("list_flatten", [column])
    return (
        flat.fill_null(0).to_numpy(zero_copy_only=False),
        flat.is_valid().to_numpy(zero_copy_only=False),
        list_lengths(column),
        column.is_valid().to_numpy(zero_copy_only=False),
    )


def list_lengths(column: pa.Array) -> Int64:
    """How many values each row of a column of lists has, 0 for a null row, (rows,)."""
    lengths: Any = pc.call_function("list_value_length", [column])
    return lengths.fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)


def holds_ids(column: pa.DataType) -> bool:
    """Whether a column of this type can hold token ids: lists of integers."""
    lists = (
        pa.types.is_list,
        pa.types.is_large_list,
        pa.types.is_fixed_size_list,
        pa.types.is_list_view,
        pa.types.is_large_list_view,
    )
    nested: Any = column
    return any(of(nested) for of in lists) and pa.types.is_integer(nested.value_type)


def _group_bytes(file: pq.ParquetFile, token_column: str, group: int) -> int:
    metadata = file.metadata
    row_group = metadata.row_group(group)
    for leaf in range(metadata.num_columns):
        if metadata.schema.column(leaf).path.startswith(f"{token_column}."):
            return row_group.column(leaf).total_uncompressed_size
    return row_group.total_byte_size
