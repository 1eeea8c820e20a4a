"""Records of tables: a row each."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from pipeline.reading.arrow_ipc import ArrowError, read_batches, schema_of
from pipeline.reading.listing import SourceError
from pipeline.reading.records.fields import id_of, metadata_of
from pipeline.reading.records.outcome import Outcome, Problem, Record
from pipeline.reading.splits import Split
from pipeline.reading.text_columns import open_parquet
from pipeline.settings.documents import SourceConfig

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
                columns=_columns(source, file.schema_arrow, path),
                use_threads=False,
            ):
                yield from _rows(batch, source)
        except MemoryError:  # Arrow's is an ArrowException too, and says nothing of the file
            raise
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
        columns = _columns(source, schema_of(path), path)
        for batch in read_batches(path, split.start, split.stop, columns):
            for start in range(0, batch.num_rows, _BATCH_ROWS):
                yield from _rows(batch.slice(start, _BATCH_ROWS), source)
    except MemoryError:  # Arrow's is an ArrowException too, and says nothing of the file
        raise
    except (ArrowError, pa.ArrowException, OSError) as error:
        raise SourceError(
            f"{path}: record batches in bytes {split.start} to {split.stop - 1} cannot be read: "
            f"{error}; replace the file or remove it"
        ) from error


def _columns(source: SourceConfig, schema: pa.Schema, path: str) -> list[str]:
    """The text column, and those of the others that a file has."""
    wanted = dict.fromkeys((source.text_column, *source.keep_columns))
    if source.id_column is not None:
        wanted[source.id_column] = None
    for name in wanted:
        if schema.names.count(name) > 1:
            raise SourceError(f"{path}: several columns are called {name!r}; name another")
    return [name for name in wanted if name in schema.names]


def _rows(batch: pa.RecordBatch, source: SourceConfig) -> Iterator[Outcome]:
    column = source.text_column
    texts = _values(batch.column(column))
    others = [name for name in batch.schema.names if name != column]
    kept = [_values(batch.column(name)) for name in others]
    for row, text in enumerate(texts):
        if isinstance(text, str):
            values = {name: _known(found[row]) for name, found in zip(others, kept, strict=True)}
            values[column] = text
            metadata = metadata_of(values, source.keep_columns)
            yield Record(text, metadata, id_of(values, source.id_column))
        else:
            yield text or Problem("missing_text", f"{column!r} is null")


def _known(value: Any) -> Any:
    return None if isinstance(value, Problem) else value


def _values(column: pa.Array) -> list[Any]:
    """A column's values; a Problem for a string that is not UTF-8, which Parquet may hold."""
    if isinstance(column, pa.DictionaryArray):
        column = column.dictionary_decode()
    try:
        return column.to_pylist()
    except UnicodeDecodeError:
        return [_value(value) for value in column]


def _value(scalar: pa.Scalar) -> Any:
    try:
        return scalar.as_py()
    except UnicodeDecodeError as error:
        return Problem("bad_utf8", f"{error.reason} at byte {error.start}")
