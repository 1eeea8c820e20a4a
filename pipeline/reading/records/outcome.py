"""What a record comes to: its fields, or what is wrong with it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

MAX_TEXT_BYTES = 1 << 28
"""Longest document that is read, in UTF-8 bytes."""
BOM = b"\xef\xbb\xbf"
_UTF16 = (b"\xff\xfe", b"\xfe\xff")


@dataclass(frozen=True, slots=True)
class Problem:
    """Why a record is not accepted: one of the reasons, and what was found."""

    reason: str
    detail: str


BLANK = Problem("", "")
"""A line without content: no record, but it counts as a line."""
UTF16 = Problem("utf16", "starts with a UTF-16 byte-order mark; convert the file to UTF-8")


class Record(NamedTuple):
    """What is read of a record.

    `metadata` is a JSON object of the columns that are kept, `id` the record's id as JSON.
    """

    text: str
    metadata: str | None = None
    id: str | None = None


Outcome: TypeAlias = Record | Problem


def decode(content: bytes) -> str | Problem:
    """UTF-8 as text."""
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        return Problem("bad_utf8", f"{error.reason} at byte {error.start}")


def text_size(text: str) -> int | Problem:
    """UTF-8 bytes of a text that can be a document."""
    if not text or text.isspace():
        return Problem("empty_text", f"{len(text)} characters, none but white space")
    try:
        size = len(text) if text.isascii() else len(text.encode())
    except UnicodeEncodeError as error:
        return Problem("bad_utf8", f"lone surrogate at character {error.start}")
    if size > MAX_TEXT_BYTES:
        return Problem("too_long", f"{size} bytes, at most {MAX_TEXT_BYTES} are allowed")
    return size


def is_utf16(head: bytes) -> bool:
    """Whether a file starts with a byte-order mark of UTF-16 (or of UTF-32, little-endian)."""
    return head.startswith(_UTF16)


def is_utf16_json(head: bytes) -> bool:
    """The same for lines of JSON, whose first character is ASCII: one stray byte is no mark."""
    return is_utf16(head) and b"\0" in head[2:4]
