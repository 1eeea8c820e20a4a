"""Records of JSON Lines: an object a line."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import orjson

from pipeline.reading.records import lines as line_reader
from pipeline.reading.records.compressed import COMPRESSIONS, TruncatedError, decompressed
from pipeline.reading.records.fields import id_of, metadata_of
from pipeline.reading.records.outcome import (
    BLANK,
    BOM,
    UTF16,
    Outcome,
    Problem,
    Record,
    decode,
    is_utf16_json,
)
from pipeline.reading.splits import Split
from pipeline.settings.documents import SourceConfig

MAX_DEPTH = 200
"""Deepest nesting of a record."""
_BRACKETS = re.compile(rb'"(?:[^"\\]++|\\.)*+(?:"|\\?\Z)|[\[\]{}]', re.DOTALL)
"""Brackets, and whole strings, in which brackets mean nothing; one without an end goes to the last
byte. Nothing is tried twice, so no line takes more than one pass."""


def json_records(split: Split, source: SourceConfig) -> Iterator[Outcome]:
    """The records of a split, in order; blank lines too, since they count as lines."""
    path, name = split.paths[0], split.names[0]
    if name.endswith(COMPRESSIONS):
        lines = (line for line, _ in line_reader.lines(decompressed(path, name)))
    elif is_utf16_json(line_reader.head_of(path)):
        if split.start == 0:  # once a file
            yield UTF16
        return
    else:
        lines = line_reader.lines_from(path, split.start, split.stop)
    try:
        for number, line in enumerate(lines):
            if line is None:
                yield Problem("too_long", f"line of more than {line_reader.MAX_LINE_BYTES} bytes")
            elif number or split.start:
                yield _record(line, source)
            elif is_utf16_json(line[:4]):
                yield UTF16
                return
            else:
                yield _record(line.removeprefix(BOM), source)
    except TruncatedError as error:
        yield Problem("truncated", str(error))


def _record(line: bytes, source: SourceConfig) -> Outcome:
    if not line or line.isspace():
        return BLANK
    if not source.keep_columns and source.id_column is None:  # it makes a float of a large number
        try:
            value = orjson.loads(line)
        except orjson.JSONDecodeError:
            value = None
        if isinstance(value, dict):
            found = value.get(source.text_column)
            if isinstance(found, str) and (_is_flat(value) or not _is_deep(line)):
                return Record(found)
    if _is_deep(line):
        return Problem("broken_json", f"more than {MAX_DEPTH} brackets deep")
    return _read_in_full(line, source)


def _is_flat(value: dict[str, Any]) -> bool:
    return not any(isinstance(field, dict | list) for field in value.values())


def _is_deep(line: bytes) -> bool:
    """Whether a line is nested deeper than is read: parsers go as deep as their stack allows."""
    if line.count(b"[") + line.count(b"{") <= MAX_DEPTH:
        return False
    depth = 0
    for found in _BRACKETS.finditer(line):
        if found[0] in (b"[", b"{"):
            depth += 1
            if depth > MAX_DEPTH:
                return True
        elif found[0] in (b"]", b"}"):
            depth -= 1
    return False


def _read_in_full(line: bytes, source: SourceConfig) -> Outcome:
    """The same by the standard library, which says what is wrong and takes a little more.

    It takes NaN, numbers beyond 64 bits and lone surrogates in other values.
    """
    text = decode(line)
    if isinstance(text, Problem):
        return text
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        return Problem("broken_json", f"{error.msg} at character {error.pos}")
    except ValueError as error:  # a giant number
        return Problem("broken_json", str(error))
    if not isinstance(value, dict):
        return Problem("not_an_object", f"a JSON {type(value).__name__}")
    column = source.text_column
    found = value.get(column)
    if found is None:
        state = "null" if column in value else "absent"
        return Problem("missing_text", f"{column!r} is {state}")
    if not isinstance(found, str):
        return Problem("text_not_string", f"{column!r} is a JSON {type(found).__name__}")
    metadata = metadata_of(value, source.keep_columns)
    return Record(found, metadata, id_of(value, source.id_column))
