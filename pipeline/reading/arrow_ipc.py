"""Arrow IPC files and streams a message at a time: where record batches lie, and reading some.

A file is a stream between a magic word and a footer, so both are read alike, from the messages'
own lengths; bodies are not touched to find the next message. Layout: the Arrow columnar format's
"Serialization and Interprocess Communication", and the FlatBuffers tables of its Message.fbs.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

import pyarrow as pa
from pyarrow import ipc

from pipeline.files.storage import open_random

_MAGIC = b"ARROW1"
_HEAD_BYTES = 4096
"""Read at once of a message: its lengths and, most often, all of its metadata."""
_KINDS = {1: "schema", 2: "dictionary", 3: "batch"}
_BODY_LENGTH, _HEADER_TYPE = 3, 1  # places of these fields in the table Message


class ArrowError(ValueError):
    """A file is not Arrow IPC, or is damaged."""


@dataclass(frozen=True, slots=True)
class Message:
    """A message of a stream: bytes `[start, stop)` of the file, metadata and body."""

    kind: str
    start: int
    stop: int


def messages(file: Any) -> Iterator[Message]:
    """The messages of a file or stream, in order; only metadata is read.

    Raises:
        ArrowError: not Arrow IPC, or it ends inside a message.
    """
    size = file.size()
    position = 8 if _read_at(file, 0, len(_MAGIC)) == _MAGIC else 0
    if position and _read_at(file, max(size - len(_MAGIC), 8), len(_MAGIC)) != _MAGIC:
        raise ArrowError("ends before its footer")
    while position < size:
        head = _read_at(file, position, _HEAD_BYTES)
        try:
            marker, length = struct.unpack_from("<ii", head)
            prefix = 8
            if marker != -1:  # before Arrow 0.15 there was no marker
                length, prefix = marker, 4
            if length == 0:
                return
            if length > len(head) - prefix:
                head = _read_at(file, position, prefix + length)
            kind, body = _kind_and_body(head[prefix : prefix + length])
        except (struct.error, KeyError) as error:
            raise ArrowError(f"no Arrow IPC message at byte {position}") from error
        stop = position + prefix + length + body
        if stop > size or body < 0 or length < 0:
            raise ArrowError(f"ends inside the message at byte {position}")
        yield Message(kind, position, stop)
        position = stop


def batch_spans(file: Any) -> list[tuple[int, int]]:
    """Bytes of each record batch, from its first to that of the next one."""
    found = list(messages(file))
    starts = [message.start for message in found if message.kind == "batch"]
    return list(zip(starts, [*starts[1:], found[-1].stop if found else 0], strict=False))


def read_schema(file: Any) -> pa.Schema:
    """The schema of a file or stream.

    Raises:
        ArrowError: it does not start with one.
    """
    first = next(messages(file), None)
    if first is None or first.kind != "schema":
        raise ArrowError("does not start with an Arrow schema")
    return ipc.read_schema(pa.py_buffer(_read_at(file, first.start, first.stop - first.start)))


def schema_of(path: str) -> pa.Schema:
    """The schema of the file or stream at a path."""
    with open_random(path) as file:
        return read_schema(file)


def read_batches(path: str, start: int, stop: int, columns: Sequence[str]) -> Iterator[Any]:
    """The record batches whose first byte is in `[start, stop)`, with some of their columns.

    Memory is bounded by a batch and the file's dictionaries.

    Raises:
        ArrowError: the file is damaged.
        pyarrow.ArrowException: likewise.
    """
    with open_random(path) as file:
        schema = read_schema(file)
        ranges = [*_before(file, start, schema), (start, stop)]
        options = ipc.IpcReadOptions(
            included_fields=[schema.get_field_index(name) for name in columns], use_threads=False
        )
        with ipc.open_stream(pa.PythonFile(_Ranges(file, ranges), "r"), options=options) as stream:
            yield from stream


def _before(file: Any, start: int, schema: pa.Schema) -> Iterator[tuple[int, int]]:
    """What a stream that starts in the middle must begin with: the schema and dictionaries."""
    needed = ("schema", "dictionary") if any(map(_has_dictionary, schema.types)) else ("schema",)
    for message in messages(file):
        if message.start >= start:
            return
        if message.kind in needed:
            yield message.start, message.stop
        if len(needed) == 1:
            return


def _has_dictionary(type_: pa.DataType) -> bool:
    return isinstance(type_, pa.DictionaryType) or any(
        _has_dictionary(type_.field(place).type) for place in range(type_.num_fields)
    )


def _read_at(file: Any, position: int, count: int) -> bytes:
    file.seek(position)
    return file.read(count)


def _kind_and_body(metadata: bytes) -> tuple[str, int]:
    """Two fields of a FlatBuffers table Message: what it is, and how long its body is."""
    (table,) = struct.unpack_from("<I", metadata)
    (back,) = struct.unpack_from("<i", metadata, table)
    vtable = table - back

    def field(place: int, form: str) -> int:
        (size,) = struct.unpack_from("<H", metadata, vtable)
        if 4 + 2 * place >= size:
            return 0
        (offset,) = struct.unpack_from("<H", metadata, vtable + 4 + 2 * place)
        return struct.unpack_from(form, metadata, table + offset)[0] if offset else 0

    return _KINDS[field(_HEADER_TYPE, "<B")], field(_BODY_LENGTH, "<q")


class _Ranges(io.RawIOBase):
    """Ranges of a file, end to end, as a stream."""

    def __init__(self, file: BinaryIO, ranges: Sequence[tuple[int, int]]) -> None:
        self._file = file
        self._ranges = list(ranges)

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        parts = []
        while self._ranges and size:
            start, stop = self._ranges[0]
            self._file.seek(start)
            part = self._file.read(stop - start if size < 0 else min(size, stop - start))
            if not part:
                break
            parts.append(part)
            size -= len(part) if size > 0 else 0
            self._ranges[0] = start + len(part), stop
            if start + len(part) == stop:
                del self._ranges[0]
        return b"".join(parts)
