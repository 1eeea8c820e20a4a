"""Lines of a file, from anywhere in it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import BinaryIO

from pipeline.files.storage import is_url, open_random

MAX_LINE_BYTES = 1 << 29
"""Longest line that is read; JSON's escapes make a line longer than its text."""
READ_BYTES = 1 << 18
_REMOTE_READ_BYTES = 1 << 22  # a request costs more than a read
_REST_BYTES = 1 << 16


def lines_from(path: str, start: int, stop: int) -> Iterator[bytes | None]:
    """Lines whose first byte is in `[start, stop)`, each to its end; None for one too long."""
    read_bytes = _REMOTE_READ_BYTES if is_url(path) else READ_BYTES
    with open_random(path) as file:
        position = _first_line(file, start, stop)
        if position >= stop:
            return
        file.seek(position)
        for line, length in lines(_blocks(file, position, stop, read_bytes)):
            yield line
            position += length
            if position >= stop:
                return


def head_of(path: str) -> bytes:
    """The first four bytes of a file, or all of a shorter one."""
    with open_random(path) as file:
        return file.read(4)


def lines(chunks: Iterable[bytes]) -> Iterator[tuple[bytes | None, int]]:
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
        if length <= MAX_LINE_BYTES:
            held.append(rest)
        else:
            held.clear()
    if length:
        yield (b"".join(held) if length <= MAX_LINE_BYTES else None), length


def _blocks(file: BinaryIO, position: int, stop: int, read_bytes: int) -> Iterator[bytes]:
    """A file's bytes from `position` on; past `stop` in small blocks, to end the last line."""
    while True:
        size = min(read_bytes, stop - position) if position < stop else _REST_BYTES
        block = file.read(size)
        if not block:
            return
        yield block
        position += len(block)


def _first_line(file: BinaryIO, start: int, stop: int) -> int:
    """Where the first line starts in `[start, stop)`; `stop` if none does."""
    if start == 0:
        return 0
    position = start - 1  # a line starts at `start` if the byte before it ends one
    file.seek(position)
    while block := file.read(min(_REST_BYTES, stop - position)):
        if (newline := block.find(b"\n")) >= 0:
            return position + newline + 1
        position += len(block)
    return stop
