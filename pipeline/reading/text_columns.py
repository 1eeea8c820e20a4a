"""Tables with a column of texts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.reading.listing import SourceError
from pipeline.reading.parquet import opened


@contextmanager
def open_parquet(path: str, text_column: str) -> Iterator[pq.ParquetFile]:
    """Open a Parquet file that has a text column of strings.

    Raises:
        SourceError: not Parquet, no such column, or the column holds something else.
    """
    with opened(path) as file:
        check_columns(path, file.schema_arrow, text_column)
        yield file


def check_columns(path: str, schema: pa.Schema, text_column: str) -> None:
    """Refuse a table without one text column of strings.

    Raises:
        SourceError: no such column, several, or the column holds something else.
    """
    if schema.names.count(text_column) > 1:
        raise SourceError(
            f"{path}: {schema.names.count(text_column)} columns are called {text_column!r}; set "
            "text_column to one that is there once"
        )
    column: Any = schema.field(text_column).type if text_column in schema.names else None
    value_type = column.value_type if isinstance(column, pa.DictionaryType) else column
    if value_type not in (pa.string(), pa.large_string(), pa.string_view()):
        found = "has no such column" if column is None else f"holds {column} there, not strings"
        raise SourceError(
            f"{path}: text_column is {text_column!r} but the file {found}; set text_column to one "
            f"of: {', '.join(schema.names)}"
        )
