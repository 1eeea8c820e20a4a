"""Text files: each whole file is a document."""

from __future__ import annotations

from collections.abc import Iterator

from pipeline.files.storage import open_stream
from pipeline.reading.records import outcome
from pipeline.reading.records.compressed import COMPRESSIONS, TruncatedError, decompressed
from pipeline.reading.records.outcome import BOM, UTF16, Outcome, Problem, Record, decode, is_utf16

_READ_BYTES = 1 << 18


def text_record(path: str, name: str) -> Outcome:
    """A whole file as one document, a UTF-8 byte-order mark aside."""
    chunks = decompressed(path, name) if name.endswith(COMPRESSIONS) else _file_chunks(path)
    content, size = [], 0
    try:
        for chunk in chunks:
            content.append(chunk)
            size += len(chunk)
            if size > outcome.MAX_TEXT_BYTES:
                return Problem("too_long", f"more than {outcome.MAX_TEXT_BYTES} bytes")
    except TruncatedError as error:
        return Problem("truncated", str(error))
    whole = b"".join(content)
    if is_utf16(whole[:2]):
        return UTF16
    text = decode(whole.removeprefix(BOM))
    return text if isinstance(text, Problem) else Record(text)


def _file_chunks(path: str) -> Iterator[bytes]:
    with open_stream(path) as file:
        while chunk := file.read(_READ_BYTES):
            yield chunk
