"""Part files of the plan, the shards and the CP plans, every byte checked before it is decoded.

A local part is mapped, of a remote one ranges are fetched. Its footer is hashed when it is opened,
a row group when it is first read; the digests come from row_groups.parquet. What a row group holds
is decoded once for all its rows, and only the columns that are asked for.
"""

from __future__ import annotations

from bisect import bisect_right
from functools import lru_cache
from itertools import accumulate
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.files.byte_files import FileBytes, open_bytes
from pipeline.shard import schema
from pipeline.shard.digests import ByteRange, xxh3_128
from pipeline.shard.pages import flat_values
from pipeline.shard.row_groups import Column, Ragged, Row, RowGroup
from pipeline.shard.superseded import part_path, read_set_table
from pipeline.shard.tables import FormatError, check_columns

_OPEN_PARTS = 8


class PartFiles:
    """Rows of a set's part files by path and row number; not for several threads at once.

    Args:
        directory: the set's directory.
        row_groups_sha256: digest of row_groups.parquet, from the manifest.
        dtype: of the tokens, "uint16" or "uint32".
        kept_groups: row groups that stay decoded.

    Raises:
        FormatError: row_groups.parquet is damaged.
    """

    def __init__(
        self, directory: Path, row_groups_sha256: str, *, dtype: str, kept_groups: int
    ) -> None:
        name = "row_groups.parquet"
        table = read_set_table(directory, name, schema.ROW_GROUPS, row_groups_sha256)
        self._directory = directory
        self._row_groups_sha256 = row_groups_sha256
        self._dtype = dtype
        self._table = table
        self._starts = _path_starts(table)
        self._part = lru_cache(_OPEN_PARTS)(self._open_part)
        self._group = lru_cache(kept_groups)(self._open_group)

    def row(self, path: str, row: int) -> Row:
        """One row of a part.

        Args:
            path: the part, as row_groups.parquet names it.
            row: counted from the start of the part.

        Raises:
            FormatError: the file is missing or damaged; names the row group where one is known.
        """
        part = self._part(path)
        if not 0 <= row < part.first_rows[-1]:
            raise FormatError(f"has {part.first_rows[-1]} rows, needs row {row}", path=part.path)
        group = bisect_right(part.first_rows, row) - 1
        return Row(self._group(path, group), row - part.first_rows[group])

    def _open_part(self, path: str) -> _Part:
        if path not in self._starts:
            raise FormatError(f"does not list {path}", path=self._directory / "row_groups.parquet")
        start, stop = self._starts[path]
        ranges, digests = _ranges(self._table.slice(start, stop - start))
        columns = schema.part_schema(path, self._dtype)
        place = part_path(self._directory, path, self._row_groups_sha256)
        return _Part(place, columns, ranges, digests)

    def _open_group(self, path: str, group: int) -> RowGroup:
        return self._part(path).open_group(group)


class _Part:
    """An open part; its footer has been checked."""

    def __init__(
        self, path: Path, columns: pa.Schema, ranges: list[ByteRange], digests: list[str]
    ) -> None:
        self.path = path
        self._ranges, self._digests = ranges, digests
        footer = ranges[-1]
        try:
            self._bytes: FileBytes = open_bytes(path)
        except OSError as error:
            raise FormatError(f"cannot be read: {error}", path=path) from error
        if self._bytes.size != footer.offset + footer.length:
            raise FormatError(
                f"has {self._bytes.size} bytes, row_groups.parquet says "
                f"{footer.offset + footer.length}; the file is truncated or was exchanged",
                path=path,
            )
        content = self._intact(len(ranges) - 1)
        try:
            self._metadata = pq.read_metadata(pa.BufferReader(content))
            found = self._metadata.schema.to_arrow_schema()
        except MemoryError:  # Arrow's is an ArrowException too, and says nothing of the file
            raise
        except pa.ArrowException as error:
            raise FormatError(f"is not Parquet: {error}", path=path) from error
        check_columns(found, columns, path)
        self._columns = columns
        self._file = pq.ParquetFile(self._bytes.source, metadata=self._metadata)
        groups = self._metadata.num_row_groups
        if groups != len(ranges) - 1:
            raise FormatError(
                f"has {groups} row groups, row_groups.parquet lists {len(ranges) - 1}", path=path
            )
        rows = [self._metadata.row_group(group).num_rows for group in range(groups)]
        self.first_rows = [0, *accumulate(rows)]

    def open_group(self, group: int) -> RowGroup:
        """A row group, after its bytes were found intact."""
        data = self._intact(group)

        def decode(row_group: RowGroup, names: list[str]) -> dict[str, Column]:
            try:
                if names == [schema.TOKENS]:
                    return {schema.TOKENS: self._tokens(group, data, row_group)}
                return self._read(group, data, names)
            except MemoryError:  # Arrow's is an ArrowException too, and says nothing of the file
                raise
            except (pa.ArrowException, OSError) as error:
                raise FormatError(
                    f"cannot be decoded: {error}", path=self.path, row_group=group
                ) from error

        return RowGroup(self._columns.names, decode)

    def _read(self, group: int, data: pa.Buffer, names: list[str]) -> dict[str, Column]:
        """Columns of a row group as the Parquet library decodes them."""
        self._bytes.show(data, self._ranges[group].offset)
        table = self._file.read_row_group(group, columns=names, use_threads=False)
        return {name: _column(table.column(name), self.path, group) for name in names}

    def _tokens(self, group: int, data: pa.Buffer, row_group: RowGroup) -> Ragged:
        """The tokens of a row group; where its rows begin follows from `cu_seqlens`."""
        place = self._columns.get_field_index(schema.TOKENS)
        chunk = self._metadata.row_group(group).column(place)
        values = flat_values(data, self._ranges[group].offset, chunk)
        bounds = row_group.lists("cu_seqlens")
        if values is not None and np.all(np.diff(bounds.offsets) > 0):
            ends = np.cumsum(bounds.values[bounds.offsets[1:] - 1], dtype=np.int64)
            if ends[-1] == len(values):
                return Ragged(self._ids(values), np.concatenate([[0], ends]))
        found = self._read(group, data, [schema.TOKENS])[schema.TOKENS]
        assert isinstance(found, Ragged)
        return found

    def _ids(self, values: np.ndarray) -> np.ndarray:
        """Token ids as the format has them of integers as Parquet has them; read-only."""
        dtype = self._columns.field(schema.TOKENS).type.value_type.to_pandas_dtype()
        # Parquet's integers have 32 bits or more, those of uint32 stand for themselves.
        ids = values.view(dtype) if values.itemsize == 4 and dtype == np.uint32 else values
        ids = ids.astype(dtype, copy=False)
        ids.setflags(write=False)
        return ids

    def _intact(self, place: int) -> pa.Buffer:
        """The bytes of a row group, or of the footer, the last place."""
        group, offset, length = self._ranges[place]
        try:
            data = self._bytes.read(offset, length)
        except OSError as error:
            raise FormatError(
                f"cannot be read: {error}", path=self.path, row_group=group
            ) from error
        found = xxh3_128(memoryview(data))
        if found != self._digests[place]:
            raise FormatError(
                f"its XXH3-128 is {found}, row_groups.parquet says {self._digests[place]}; the "
                "bytes are damaged, restore the file or build it again",
                path=self.path,
                row_group=group,
            )
        return data


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
        values = array.values.to_numpy()
        return Ragged(values[offsets[0] : offsets[-1]], offsets - offsets[0])
    if pa.types.is_string(array.type):
        return array.to_pylist()
    return array.to_numpy()
