"""Part files of the plan, the shards and the CP plans, every byte checked before it is decoded.

A part is mapped. Its footer is hashed when it is opened, a row group when it is first read; the
digests come from row_groups.parquet. A few decoded row groups are kept, so that the slots of one
step do not decode their group again and again.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.shard import schema
from pipeline.shard.digests import ByteRange, xxh3_128
from pipeline.shard.tables import FormatError, check_columns, read_table

_OPEN_PARTS = 8
_DECODED_GROUPS = 8


@dataclass(frozen=True, slots=True, eq=False)
class Ragged:
    """A list column: row i is `values[offsets[i] : offsets[i + 1]]`."""

    values: np.ndarray
    offsets: np.ndarray


Column: TypeAlias = np.ndarray | Ragged | list[str]


@dataclass(frozen=True, slots=True, eq=False)
class Row:
    """One row of a decoded row group."""

    columns: dict[str, Column]
    index: int

    def list_of(self, name: str) -> np.ndarray:
        """A list column's values, a read-only view."""
        column = self.columns[name]
        assert isinstance(column, Ragged)
        return column.values[column.offsets[self.index] : column.offsets[self.index + 1]]

    def integer(self, name: str) -> int:
        column = self.columns[name]
        assert isinstance(column, np.ndarray)
        return int(column[self.index])

    def text(self, name: str) -> str:
        column = self.columns[name]
        assert isinstance(column, list)
        return column[self.index]


class PartFiles:
    """Rows of a set's part files by path and row number; not for several threads at once.

    Args:
        directory: the set's directory.
        row_groups_sha256: digest of row_groups.parquet, from the manifest.

    Raises:
        FormatError: row_groups.parquet is damaged.
    """

    def __init__(self, directory: Path, row_groups_sha256: str) -> None:
        table = read_table(
            directory / "row_groups.parquet", schema.ROW_GROUPS, sha256=row_groups_sha256
        )
        self._directory = directory
        self._table = table
        self._starts = _path_starts(table)
        self._part = lru_cache(_OPEN_PARTS)(self._open_part)
        self._group = lru_cache(_DECODED_GROUPS)(self._decode)

    def row(self, path: str, row: int, columns: pa.Schema) -> Row:
        """One row of a part.

        Args:
            path: the part, as row_groups.parquet names it.
            row: counted from the start of the part.
            columns: what the format says of this kind of part.

        Raises:
            FormatError: the file is missing or damaged; names the row group where one is known.
        """
        part = self._part(path, columns)
        if not 0 <= row < part.first_rows[-1]:
            raise FormatError(f"has {part.first_rows[-1]} rows, needs row {row}", path=part.path)
        group = int(np.searchsorted(part.first_rows, row, side="right")) - 1
        return Row(self._group(path, group, columns), row - int(part.first_rows[group]))

    def _open_part(self, path: str, columns: pa.Schema) -> _Part:
        if path not in self._starts:
            raise FormatError(f"does not list {path}", path=self._directory / "row_groups.parquet")
        start, stop = self._starts[path]
        ranges, digests = _ranges(self._table.slice(start, stop - start))
        return _Part(self._directory / path, columns, ranges, digests)

    def _decode(self, path: str, group: int, columns: pa.Schema) -> dict[str, Column]:
        return self._part(path, columns).decode(group)


class _Part:
    """An open part; its footer has been checked."""

    def __init__(
        self, path: Path, columns: pa.Schema, ranges: list[ByteRange], digests: list[str]
    ) -> None:
        self.path = path
        self._ranges, self._digests = ranges, digests
        footer = ranges[-1]
        try:
            with pa.memory_map(str(path)) as mapped:
                self._buffer = mapped.read_buffer()
        except OSError as error:
            raise FormatError(f"cannot be read: {error}", path=path) from error
        if self._buffer.size != footer.offset + footer.length:
            raise FormatError(
                f"has {self._buffer.size} bytes, row_groups.parquet says "
                f"{footer.offset + footer.length}; the file is truncated or was exchanged",
                path=path,
            )
        self._check(len(ranges) - 1)
        try:
            self._file = pq.ParquetFile(pa.BufferReader(self._buffer))
        except pa.ArrowException as error:
            raise FormatError(f"is not Parquet: {error}", path=path) from error
        check_columns(self._file.schema_arrow, columns, path)
        if self._file.num_row_groups != len(ranges) - 1:
            raise FormatError(
                f"has {self._file.num_row_groups} row groups, row_groups.parquet lists "
                f"{len(ranges) - 1}",
                path=path,
            )
        rows = [self._file.metadata.row_group(group).num_rows for group in range(len(ranges) - 1)]
        self.first_rows = np.cumsum([0, *rows])

    def decode(self, group: int) -> dict[str, Column]:
        """A row group's columns, after its bytes were found intact."""
        self._check(group)
        try:
            table = self._file.read_row_group(group, use_threads=False)
        except (pa.ArrowException, OSError) as error:
            raise FormatError(
                f"cannot be decoded: {error}", path=self.path, row_group=group
            ) from error
        return {name: _column(table.column(name), self.path, group) for name in table.column_names}

    def _check(self, place: int) -> None:
        group, offset, length = self._ranges[place]
        found = xxh3_128(memoryview(self._buffer)[offset : offset + length])
        if found != self._digests[place]:
            raise FormatError(
                f"its XXH3-128 is {found}, row_groups.parquet says {self._digests[place]}; the "
                "bytes are damaged, restore the file or build it again",
                path=self.path,
                row_group=group,
            )


def _path_starts(table: pa.Table) -> dict[str, tuple[int, int]]:
    """Where each path's rows lie in row_groups.parquet: a file's last row is its footer."""
    group = table.column("row_group").combine_chunks().to_numpy()
    stops = np.flatnonzero(group == schema.FOOTER) + 1
    paths = table.column("path").take(pa.array(stops - 1)).to_pylist()
    starts = [0, *stops[:-1].tolist()]
    return dict(zip(paths, zip(starts, stops.tolist(), strict=True), strict=True))


def _ranges(rows: pa.Table) -> tuple[list[ByteRange], list[str]]:
    columns = [rows.column(name).to_pylist() for name in ("row_group", "offset", "length")]
    ranges = [ByteRange(*place) for place in zip(*columns, strict=True)]
    return ranges, rows.column("xxh3_128").to_pylist()


def _column(column: pa.ChunkedArray, path: Path, group: int) -> Column:
    array = column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
    if array.null_count:
        raise FormatError("holds a null", path=path, row_group=group)
    if pa.types.is_list(array.type):
        offsets = array.offsets.to_numpy()
        return Ragged(array.flatten().to_numpy(), offsets - offsets[0])
    if pa.types.is_string(array.type):
        return array.to_pylist()
    return array.to_numpy()
