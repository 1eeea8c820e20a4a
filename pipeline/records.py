"""Reading a split: accepted texts, and what was not accepted and why.

A bad record is refused by itself; it neither stops the reading nor shifts its neighbours' numbers.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import BinaryIO

import pyarrow as pa
import zstandard

from pipeline.sources import COMPRESSIONS, SourceError, Split, open_parquet

BATCH_BYTES = 1 << 20
BATCH_RECORDS = 1024
MAX_TEXT_BYTES = 1 << 28
"""Longest document that is read, in UTF-8 bytes."""
MAX_LINE_BYTES = 1 << 29
"""Longest line that is read; JSON's escapes make a line longer than its text."""
_READ_BYTES = 1 << 18
_ZSTD_READ_BYTES = 1 << 11  # a few bytes can hold megabytes of one repeated character
_DETAIL_CHARACTERS = 200
_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reject:
    """A record that was not accepted.

    `file` is a row of the inputs and `record` the number in the split's part of that file. Reasons:
    broken_json, not_an_object, missing_text, text_not_string, empty_text, bad_utf8, truncated,
    too_long, unbroken, no_tokens.
    """

    file: int
    record: int
    reason: str
    detail: str


@dataclass(slots=True, kw_only=True)
class RecordBatch:
    """Consecutive records of a split, at most about `BATCH_BYTES` or `BATCH_RECORDS` of them.

    The first four lists are parallel, one entry an accepted record. `records` counts the records
    (lines, rows, files) read of the split so far, this batch included.
    """

    texts: list[str] = field(default_factory=list)
    text_bytes: list[int] = field(default_factory=list)
    file: list[int] = field(default_factory=list)
    record: list[int] = field(default_factory=list)
    rejects: list[Reject] = field(default_factory=list)
    records: int = 0


@dataclass(frozen=True, slots=True)
class _Problem:
    reason: str
    detail: str


_BLANK = _Problem("", "")
"""A line without content: no record, but it counts as a line."""


class _TruncatedError(Exception):
    """A compressed file ends early or is damaged."""


def read_records(split: Split, *, text_column: str) -> Iterator[RecordBatch]:
    """Read a split in bounded batches, in order.

    Memory is bounded by a batch and one record (for Parquet, by a row group of the text column).

    Args:
        split: what to read.
        text_column: the key of a JSON object, or the column of a Parquet file, with the text.

    Raises:
        SourceError: a Parquet file that cannot be read.
    """
    batch, size = RecordBatch(), 0
    for file, record, found in _outcomes(split, text_column):
        batch.records += 1
        if found is _BLANK:
            continue
        checked = _check(found) if isinstance(found, str) else found
        if isinstance(checked, _Problem):
            detail = checked.detail[:_DETAIL_CHARACTERS]
            batch.rejects.append(
                Reject(file=file, record=record, reason=checked.reason, detail=detail)
            )
        elif isinstance(found, str):
            batch.texts.append(found)
            batch.text_bytes.append(checked)
            batch.file.append(file)
            batch.record.append(record)
            size += checked
        if size >= BATCH_BYTES or len(batch.texts) + len(batch.rejects) >= BATCH_RECORDS:
            yield batch
            batch, size = RecordBatch(records=batch.records), 0
    yield batch


def _outcomes(split: Split, text_column: str) -> Iterator[tuple[int, int, str | _Problem]]:
    """File, number and text of every record, or what is wrong with it."""
    if split.format == "text":
        for file, path in zip(split.files, split.paths, strict=True):
            yield file, 0, _read_text(path)
    elif split.format == "parquet":
        for record, found in enumerate(_parquet_texts(split, text_column)):
            yield split.files[0], record, found
    else:
        for record, found in enumerate(_jsonl_texts(split, text_column)):
            yield split.files[0], record, found


def _check(text: str) -> int | _Problem:
    """UTF-8 bytes of a text that can be a document."""
    if not text or text.isspace():
        return _Problem("empty_text", f"{len(text)} characters, none but white space")
    try:
        size = len(text.encode())
    except UnicodeEncodeError as error:
        return _Problem("bad_utf8", f"lone surrogate at character {error.start}")
    if size > MAX_TEXT_BYTES:
        return _Problem("too_long", f"{size} bytes, at most {MAX_TEXT_BYTES} are allowed")
    return size


def _jsonl_texts(split: Split, text_column: str) -> Iterator[str | _Problem]:
    path = split.paths[0]
    if path.endswith(COMPRESSIONS):
        lines, first = (line for line, _ in _lines(_decompressed(path))), True
    else:
        lines, first = _lines_from(path, split.start, split.stop), split.start == 0
    try:
        for line in lines:
            if line is None:
                yield _Problem("too_long", f"line of more than {MAX_LINE_BYTES} bytes")
                continue
            yield _json_text(line.removeprefix(_BOM) if first else line, text_column)
            first = False
    except _TruncatedError as error:
        yield _Problem("truncated", str(error))


def _json_text(line: bytes, text_column: str) -> str | _Problem:
    if not line or line.isspace():
        return _BLANK
    text = _decode(line)
    if isinstance(text, _Problem):
        return text
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        return _Problem("broken_json", f"{error.msg} at character {error.pos}")
    except (ValueError, RecursionError) as error:  # a giant number; brackets without end
        return _Problem("broken_json", str(error))
    if not isinstance(value, dict):
        return _Problem("not_an_object", f"a JSON {type(value).__name__}")
    found = value.get(text_column)
    if found is None:
        state = "null" if text_column in value else "absent"
        return _Problem("missing_text", f"{text_column!r} is {state}")
    if not isinstance(found, str):
        return _Problem("text_not_string", f"{text_column!r} is a JSON {type(found).__name__}")
    return found


def _decode(content: bytes) -> str | _Problem:
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        return _Problem("bad_utf8", f"{error.reason} at byte {error.start}")


def _lines_from(path: str, start: int, stop: int) -> Iterator[bytes | None]:
    """Lines whose first byte is in `[start, stop)`, each to its end."""
    with open(path, "rb", buffering=0) as file:
        position = _first_line(file, start, stop)
        file.seek(position)
        if position >= stop:
            return
        for line, length in _lines(iter(lambda: file.read(_READ_BYTES), b"")):
            yield line
            position += length
            if position >= stop:
                return


def _first_line(file: BinaryIO, start: int, stop: int) -> int:
    """Where the first line starts in `[start, stop)`; `stop` if none does."""
    if start == 0:
        return 0
    position = start - 1  # a line starts at `start` if the byte before it ends one
    file.seek(position)
    while block := file.read(min(_READ_BYTES, stop - position)):
        if (newline := block.find(b"\n")) >= 0:
            return position + newline + 1
        position += len(block)
    return stop


def _lines(chunks: Iterable[bytes]) -> Iterator[tuple[bytes | None, int]]:
    """Lines without their newline, and their bytes with it; None for a line that is too long."""
    held: list[bytes] = []  # what has been read of a line that is not yet whole
    length = 0
    for chunk in chunks:
        *whole, rest = chunk.split(b"\n")
        for part in whole:
            length += len(part) + 1
            held.append(part)
            yield (b"".join(held) if length <= MAX_LINE_BYTES else None), length
            held, length = [], 0
        length += len(rest)
        held = [*held, rest] if length <= MAX_LINE_BYTES else []
    if length:
        yield (b"".join(held) if length <= MAX_LINE_BYTES else None), length


def _decompressed(path: str) -> Iterator[bytes]:
    """Content of a .gz or .zst file in chunks.

    Raises:
        _TruncatedError: after the last bytes that could be read.
    """
    with open(path, "rb") as file:
        try:
            yield from (_gunzipped if path.endswith(".gz") else _unzstd)(file)
        except (EOFError, zlib.error, gzip.BadGzipFile, zstandard.ZstdError) as error:
            raise _TruncatedError(str(error)) from error


def _gunzipped(file: BinaryIO) -> Iterator[bytes]:
    with gzip.GzipFile(fileobj=file) as stream:
        while chunk := stream.read1(_READ_BYTES):
            yield chunk


def _unzstd(file: BinaryIO) -> Iterator[bytes]:
    decompressor = zstandard.ZstdDecompressor(max_window_size=1 << 31)
    frame, started = decompressor.decompressobj(), False
    while content := file.read(_ZSTD_READ_BYTES):
        while content:
            yield frame.decompress(content)
            started, content = True, b""
            if frame.eof:
                content = frame.unused_data
                frame, started = decompressor.decompressobj(), False
    if started:
        raise EOFError("compressed file ended inside a frame")


def _parquet_texts(split: Split, text_column: str) -> Iterator[str | _Problem]:
    path = split.paths[0]
    groups = list(range(split.start, split.stop))
    with open_parquet(path, text_column) as file:
        try:
            for batch in file.iter_batches(
                batch_size=128, row_groups=groups, columns=[text_column], use_threads=False
            ):
                yield from _column_texts(batch.column(0), text_column)
        except (pa.ArrowException, OSError) as error:
            raise SourceError(
                f"{path}: row groups {split.start} to {split.stop - 1} cannot be read: {error}; "
                "replace the file or remove it"
            ) from error


def _column_texts(column: pa.Array, text_column: str) -> Iterator[str | _Problem]:
    if isinstance(column, pa.DictionaryArray):
        column = column.dictionary_decode()
    try:
        values = column.to_pylist()
    except UnicodeDecodeError:  # Parquet does not promise that its strings are UTF-8
        buffers = (value.as_buffer() for value in column)
        values = [None if buffer is None else _decode(buffer.to_pybytes()) for buffer in buffers]
    for value in values:
        yield _Problem("missing_text", f"{text_column!r} is null") if value is None else value


def _read_text(path: str) -> str | _Problem:
    """A whole file as one document."""
    try:
        chunks = _decompressed(path) if path.endswith(COMPRESSIONS) else _file_chunks(path)
        content, size = [], 0
        for chunk in chunks:
            content.append(chunk)
            size += len(chunk)
            if size > MAX_TEXT_BYTES:
                return _Problem("too_long", f"more than {MAX_TEXT_BYTES} bytes")
    except _TruncatedError as error:
        return _Problem("truncated", str(error))
    return _decode(b"".join(content).removeprefix(_BOM))


def _file_chunks(path: str) -> Iterator[bytes]:
    with open(path, "rb", buffering=0) as file:
        while chunk := file.read(_READ_BYTES):
            yield chunk
