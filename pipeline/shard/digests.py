"""Digests of files, of byte ranges and of what a table says.

Three questions, three digests: is this file the one that was written (SHA-256), are these bytes of
it intact (XXH3-128, cheap enough for every read), and does it say the same whatever library wrote
it (the content digest). docs/FORMAT.md, section 5, defines all three.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple, TypeAlias, cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from pipeline.files.contents import open_unbuffered, parquet_source
from pipeline.shard.schema import FOOTER

Buffer: TypeAlias = bytes | bytearray | memoryview
"""Contiguous bytes; of a numpy array, its `data`."""
_BLOCK_BYTES = 1 << 20
_WHOLE_BYTES = 1 << 26
_MAGIC_BYTES = 4
"""Every Parquet file opens with PAR1, which belongs to no row group."""


class ByteRange(NamedTuple):
    """Bytes `[offset, offset + length)` of a Parquet file; `row_group` -1 is the footer."""

    row_group: int
    offset: int
    length: int


def sha256_bytes(data: Buffer) -> str:
    """SHA-256 of bytes in memory, 64 lower-case hex digits."""
    return hashlib.sha256(data).hexdigest()


def sha256_file(path: str | Path) -> str:
    """SHA-256 of a file, read in blocks, 64 lower-case hex digits."""
    digest = hashlib.sha256()
    with open_unbuffered(path) as file:
        while block := file.read(_BLOCK_BYTES):
            digest.update(block)
    return digest.hexdigest()


def xxh3_128(data: Buffer) -> str:
    """XXH3-128 (seed 0, canonical byte order) of bytes in memory, 32 lower-case hex digits."""
    return xxhash.xxh3_128_hexdigest(data)


def xxh3_128_file(path: str | Path) -> str:
    """XXH3-128 of a file, read in blocks, as `xxh3_128` of its bytes."""
    digest = xxhash.xxh3_128()
    with open(path, "rb", buffering=0) as file:
        while block := file.read(_BLOCK_BYTES):
            digest.update(block)
    return digest.hexdigest()


def row_group_ranges(path: str | Path) -> list[ByteRange]:
    """Where a Parquet file's row groups lie, ascending, and last its footer.

    A row group runs from the first page of its first column through the last page of its last; the
    footer is all that follows the last row group, page indexes included.

    Raises:
        ValueError: row groups do not lie end to end; no writer of this format leaves gaps.
    """
    metadata = pq.read_metadata(parquet_source(path))
    ranges: list[ByteRange] = []
    end = _MAGIC_BYTES
    for group in range(metadata.num_row_groups):
        row_group = metadata.row_group(group)
        columns = [row_group.column(i) for i in range(row_group.num_columns)]
        offset = min(first_page(column) for column in columns)
        if offset != end:
            raise ValueError(
                f"{path}: row group {group} starts at byte {offset}, the one before ends at {end}; "
                "row groups must lie end to end"
            )
        length = sum(column.total_compressed_size for column in columns)
        ranges.append(ByteRange(group, offset, length))
        end = offset + length
    size = (Path(path) if isinstance(path, str) else path).stat().st_size
    return [*ranges, ByteRange(FOOTER, end, size - end)]


def content_sha256(source: str | Path | pq.ParquetFile | pa.Table) -> str:
    """SHA-256 of what a table says, whatever wrote, compressed or grouped it.

    For each column in schema order, over all rows: a list column's offsets as int64 (rows + 1,
    first 0), then its values in their own type; a plain column's values; a string column as the
    list of its UTF-8 bytes. All little-endian.

    A file is read a column at a time; a column of more than 64 MiB a row group at a time, and
    twice, since the offsets of all rows come first. So memory is bounded by 64 MiB or a row group.

    Args:
        source: a path, an opened Parquet file, or a table in memory.

    Raises:
        ValueError: a null, or a column that is neither numbers, lists of numbers nor strings.
    """
    if not isinstance(source, pq.ParquetFile | pa.Table):
        with pq.ParquetFile(parquet_source(cast(Path, source)), memory_map=True) as file:
            return content_sha256(file)
    source = cast(pq.ParquetFile | pa.Table, source)
    schema = source.schema if isinstance(source, pa.Table) else source.schema_arrow
    digest = hashlib.sha256()
    for column, field in enumerate(schema):
        read = _column_reader(source, column, field.name)
        if pa.types.is_list(field.type) or pa.types.is_string(field.type):
            lengths = [_lengths(array) for array in read() if len(array)]
            offsets = np.zeros(sum(map(len, lengths)) + 1, np.dtype("<i8"))
            np.cumsum(np.concatenate([*lengths, np.empty(0, np.int64)]), out=offsets[1:])
            digest.update(offsets.data)
        for array in read():
            if len(array):
                digest.update(_values(array))
    return digest.hexdigest()


def first_page(column: pq.ColumnChunkMetaData) -> int:
    """Where a column chunk's pages begin in its file."""
    if column.has_dictionary_page and column.dictionary_page_offset is not None:
        return min(column.dictionary_page_offset, column.data_page_offset)
    return column.data_page_offset


def _column_reader(
    source: pq.ParquetFile | pa.Table, column: int, name: str
) -> Callable[[], Iterable[pa.Array]]:
    """What gives a column's arrays in row order, as often as it is called."""
    if not isinstance(source, pq.ParquetFile):
        table_chunks = source.column(name).chunks
        return lambda: table_chunks
    # The format's columns have one leaf each, so the column is a leaf's number too.
    groups = map(source.metadata.row_group, range(source.num_row_groups))
    if sum(group.column(column).total_uncompressed_size for group in groups) <= _WHOLE_BYTES:
        chunks = source.read(columns=[name], use_threads=False).column(name).chunks
        return lambda: chunks
    return lambda: _arrays_by_group(source, name)


def _arrays_by_group(file: pq.ParquetFile, name: str) -> Iterator[pa.Array]:
    for group in range(file.num_row_groups):
        yield from file.read_row_group(group, columns=[name], use_threads=False).column(name).chunks


def _string_offsets(array: pa.Array) -> np.ndarray:
    offsets = np.frombuffer(array.buffers()[1], np.dtype("<i4"))
    return offsets[array.offset : array.offset + len(array) + 1]


def _lengths(array: pa.Array) -> np.ndarray:
    """Values, or UTF-8 bytes, of each row, int64, shape (rows,)."""
    _refuse_nulls(array)
    if pa.types.is_string(array.type):
        return np.diff(_string_offsets(array)).astype(np.int64)
    return np.diff(array.offsets.to_numpy()).astype(np.int64)


def _values(array: pa.Array) -> Buffer:
    """A column's values back to back, little-endian."""
    _refuse_nulls(array)
    if pa.types.is_string(array.type):
        offsets, characters = _string_offsets(array), array.buffers()[2]
        return b"" if characters is None else memoryview(characters)[offsets[0] : offsets[-1]]
    values = array.flatten() if pa.types.is_list(array.type) else array
    _refuse_nulls(values)
    if not (pa.types.is_integer(values.type) or pa.types.is_floating(values.type)):
        raise ValueError(
            f"a column of {array.type} has no content digest; only numbers, lists of numbers and "
            "strings do"
        )
    return np.ascontiguousarray(values.to_numpy()).data


def _refuse_nulls(array: pa.Array) -> None:
    if array.null_count:
        raise ValueError("a column holds a null, for which no content digest is defined")
