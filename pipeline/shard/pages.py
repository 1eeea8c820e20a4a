"""The values of a large list column straight from its Parquet pages.

A shard is its token ids, and to rebuild lists value by value from levels, as a Parquet library must
in general, costs twice what decompressing them does. Where a column chunk is as our writer makes
it (zstd, plain values, no nulls, no empty lists) a page is levels and then the values as they are,
so they are taken from its end. For anything else there is no answer, and the library decodes it.

Parquet's page header is Thrift's compact protocol: https://github.com/apache/parquet-format.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.shard.digests import first_page

_TYPES = {"INT32": np.dtype("<i4"), "INT64": np.dtype("<i8")}
_ZSTD = pa.Codec("zstd")
_DATA_PAGE, _PLAIN = 0, 0
_TRUE, _FALSE, _BYTE, _I16, _I32, _I64, _BINARY, _STRUCT = 1, 2, 3, 4, 5, 6, 8, 12
_TYPE, _PLAIN_BYTES, _PACKED_BYTES, _DATA_HEADER = 1, 2, 3, 5  # fields of PageHeader
_NUM_VALUES, _ENCODING = 1, 2  # fields of DataPageHeader


def flat_values(data: pa.Buffer, base: int, column: pq.ColumnChunkMetaData) -> np.ndarray | None:
    """All values of a list column of one row group, or None where they have to be decoded.

    Args:
        data: bytes of the file that hold the column chunk.
        base: where they begin in the file.
        column: the chunk, from the footer.

    Returns:
        int32 or int64 as Parquet stores them, (values,).

    Raises:
        ArrowException: pages that cannot be decompressed.
    """
    kind = _TYPES.get(column.physical_type)
    if kind is None or column.has_dictionary_page or column.compression != "ZSTD":
        return None
    at = first_page(column) - base
    end = at + column.total_compressed_size
    found: list[np.ndarray] = []
    while at < end:
        header = _page_header(data.slice(at, min(end - at, 256)))
        if header is None:
            return None
        length, packed, plain, count = header
        # Bytes come from Python's allocator, which keeps blocks; Arrow's gives them back, and page
        # faults then cost as much as decompressing.
        body = _ZSTD.decompress(data.slice(at + length, packed), plain, asbytes=True)
        begin = plain - count * kind.itemsize
        if begin != _levels_bytes(body):
            return None  # nulls or empty lists have levels and no value
        found.append(np.frombuffer(body, kind, count, begin))
        at += length + packed
    values = found[0] if len(found) == 1 else np.concatenate(found) if found else np.empty(0, kind)
    return values if len(values) == column.num_values else None


def _levels_bytes(body: bytes) -> int:
    """Bytes of a page's repetition and definition levels, each after its length."""
    end = 0
    for _ in range(2):
        end += 4 + int.from_bytes(body[end : end + 4], "little")
    return end


def _page_header(data: pa.Buffer) -> tuple[int, int, int, int] | None:
    """Of a page of plain values: bytes of the header, of the packed and plain body, and values."""
    try:
        header, length = _read_struct(memoryview(data).cast("B"), 0)
    except (IndexError, ValueError):
        return None
    page = header.get(_DATA_HEADER)
    if header.get(_TYPE) != _DATA_PAGE or not page or page.get(_ENCODING) != _PLAIN:
        return None
    return length, header[_PACKED_BYTES], header[_PLAIN_BYTES], page[_NUM_VALUES]


def _read_struct(data: memoryview, at: int) -> tuple[dict[int, Any], int]:
    """A Thrift struct's fields by number, and where it ends."""
    fields: dict[int, Any] = {}
    number = 0
    while data[at]:
        kind, step = data[at] & 15, data[at] >> 4
        at += 1
        if step:
            number += step
        else:
            number, at = _read_signed(data, at)
        if kind in (_TRUE, _FALSE):
            fields[number] = kind == _TRUE
        elif kind in (_I16, _I32, _I64):
            fields[number], at = _read_signed(data, at)
        elif kind == _BYTE:
            at += 1
        elif kind == _BINARY:
            length, at = _read_varint(data, at)
            at += length
        elif kind == _STRUCT:
            fields[number], at = _read_struct(data, at)
        else:
            raise ValueError(f"type {kind} is in no page header")
    return fields, at + 1


def _read_signed(data: memoryview, at: int) -> tuple[int, int]:
    value, at = _read_varint(data, at)
    return (value >> 1) ^ -(value & 1), at


def _read_varint(data: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at
