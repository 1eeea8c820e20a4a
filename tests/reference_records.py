"""The slow twin of reading: a JSONL file as a whole, a line at a time, no splits."""

from __future__ import annotations

import json


def read_jsonl(content: bytes) -> tuple[list[tuple[int, str]], list[int]]:
    """Accepted records as (line number, text), and the line numbers of the others."""
    accepted: list[tuple[int, str]] = []
    refused: list[int] = []
    for number, line in enumerate(content.removeprefix(b"\xef\xbb\xbf").split(b"\n")):
        if not line.strip():
            continue
        try:
            text = json.loads(line.decode())["text"]
            text.encode()
        except (ValueError, KeyError, TypeError, AttributeError):
            refused.append(number)
            continue
        if text.strip():
            accepted.append((number, text))
        else:
            refused.append(number)
    return accepted, refused
