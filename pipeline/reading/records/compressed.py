"""The content of compressed files, in chunks that stay small whatever a few bytes expand to."""

from __future__ import annotations

import bz2
import gzip
import lzma
import zlib
from collections.abc import Callable, Iterator
from typing import BinaryIO

import zstandard

from pipeline.files.storage import open_stream

_READ_BYTES = 1 << 18
_MOST_WINDOW = 1 << 31
"""Memory that a file may demand for what it repeats; `zstd --long=31` writes such files."""
_ZSTD_READ_BYTES = 1 << 11  # a few bytes can hold megabytes of one repeated character


class TruncatedError(Exception):
    """A compressed file ends early or is damaged."""


def decompressed(path: str, name: str) -> Iterator[bytes]:
    """Content of a .gz, .zst, .bz2 or .xz file, as its name says, in chunks.

    Members or frames that follow each other are one content.

    Raises:
        TruncatedError: after the last bytes that could be read.
        OSError: the file itself cannot be read.
    """
    with open_stream(path) as file:
        yield from _DECOMPRESSORS[name[name.rindex(".") :]](file)


def _gunzipped(file: BinaryIO) -> Iterator[bytes]:
    with gzip.GzipFile(fileobj=file) as stream:
        while True:
            try:
                chunk = stream.read1(_READ_BYTES)
            except (EOFError, zlib.error, gzip.BadGzipFile) as error:
                raise TruncatedError(str(error)) from error
            if not chunk:
                return
            yield chunk


def _unzstd(file: BinaryIO) -> Iterator[bytes]:
    decompressor = zstandard.ZstdDecompressor(max_window_size=_MOST_WINDOW)
    frame, started = decompressor.decompressobj(), False
    while content := file.read(_ZSTD_READ_BYTES):
        while content:
            try:
                chunk = frame.decompress(content)
            except zstandard.ZstdError as error:
                raise TruncatedError(str(error)) from error
            yield chunk
            started, content = True, b""
            if frame.eof:
                content = frame.unused_data
                frame, started = decompressor.decompressobj(), False
    if started:
        raise TruncatedError("compressed file ended inside a frame")


def _streamed(
    make: Callable[[], bz2.BZ2Decompressor | lzma.LZMADecompressor], file: BinaryIO
) -> Iterator[bytes]:
    """Through a decompressor of the standard library that holds back what it is not asked for."""
    stream, started, content = make(), False, b""
    while True:
        if stream.eof:
            content, stream, started = stream.unused_data.lstrip(b"\0"), make(), False
        if not content and stream.needs_input and not (content := file.read(_READ_BYTES)):
            break
        try:
            chunk = stream.decompress(content, max_length=_READ_BYTES)
        except (OSError, EOFError, lzma.LZMAError) as error:
            raise TruncatedError(str(error)) from error
        started, content = True, b""
        yield chunk
    if started:
        raise TruncatedError("compressed file ended before its end-of-stream marker")


def _bunzip2(file: BinaryIO) -> Iterator[bytes]:
    return _streamed(bz2.BZ2Decompressor, file)


def _unxz(file: BinaryIO) -> Iterator[bytes]:
    return _streamed(lambda: lzma.LZMADecompressor(memlimit=_MOST_WINDOW), file)


_DECOMPRESSORS: dict[str, Callable[[BinaryIO], Iterator[bytes]]] = {
    ".gz": _gunzipped,
    ".zst": _unzstd,
    ".bz2": _bunzip2,
    ".xz": _unxz,
}
COMPRESSIONS = tuple(_DECOMPRESSORS)
"""How names of compressed files end."""
