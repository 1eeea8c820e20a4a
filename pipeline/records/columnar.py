"""Records of tables: a row each."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from pipeline.arrow_ipc import ArrowError, read_batches
from pipeline.config import SourceConfig
from pipeline.listing import SourceError
from pipeline.records.outcome import Outcome, Problem, Record, decode
from pipeline.sources import Split, open_parquet

_BATCH_ROWS = 128


def parquet_records(split: Split, source: SourceConfig) -> Iterator[Outcome]:
    """The rows of a split's row groups.

    Raises:
        SourceError: the file cannot be read.
    """
    path = split.paths[0]
    groups = list(range(split.start, split.stop))
    with open_parquet(path, source.text_column) as file:
        try:
            for batch in file.iter_batches(
                batch_size=_BATCH_ROWS,
                row_groups=groups,
                columns=[source.text_column],
                use_threads=False,
            ):
                yield from _rows(batch, source)
        except (pa.ArrowException, OSError) as error:
            raise SourceError(
                f"{path}: row groups {split.start} to {split.stop - 1} cannot be read: {error}; "
                "replace the file or remove it"
            ) from error


def arrow_records(split: Split, source: SourceConfig) -> Iterator[Outcome]:
    """The rows of a split's record batches.

    Raises:
        SourceError: the file cannot be read.
    """
    path = split.paths[0]
    try:
        for batch in read_batches(path, split.start, split.stop, [source.text_column]):
            for start in range(0, batch.num_rows, _BATCH_ROWS):
                yield from _rows(batch.slice(start, _BATCH_ROWS), source)
    except (ArrowError, pa.ArrowException, OSError) as error:
        raise SourceError(
            f"{path}: record batches in bytes {split.start} to {split.stop - 1} cannot be read: "
            f"{error}; replace the file or remove it"
        ) from error


def _rows(batch: pa.RecordBatch, source: SourceConfig) -> Iterator[Outcome]:
    column = source.text_column
    for value in _values(batch.column(column)):
        if isinstance(value, str):
            yield Record(value)
        else:
            yield value or Problem("missing_text", f"{column!r} is null")


def _values(column: pa.Array) -> list[Any]:
    """A column's values; a Problem for a string that is not UTF-8, which Parquet may hold."""
    if isinstance(column, pa.DictionaryArray):
        column = column.dictionary_decode()
    try:
        return column.to_pylist()
    except UnicodeDecodeError:
        buffers = (value.as_buffer() for value in column)
        return [None if buffer is None else decode(buffer.to_pybytes()) for buffer in buffers]
