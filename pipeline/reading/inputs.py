"""Digests of input files, kept between runs.

A store is keyed by its inputs' content, so every run digests every file; a file that is
stamped as the cache has it (size and modification time; of a URL, what its store says) is not read
again.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from pipeline.config import fingerprint
from pipeline.files.atomic import write_atomically
from pipeline.files.storage import digest_file, is_url, stamp
from pipeline.reading.listing import InputFile

_THREADS = 8


@dataclass(frozen=True, slots=True)
class Seen:
    """What files were when they were looked at; both lists are parallel to the files."""

    digests: tuple[str, ...]
    """XXH3-128 of each file's content."""
    stamps: tuple[str | None, ...]
    """Taken before the content was read."""


def look_at(inputs: Sequence[InputFile], *, cache: Path) -> Seen:
    """Digest files, but for those that an earlier run saw with the stamp that they have.

    Args:
        inputs: the files of one source.
        cache: JSON of what earlier runs saw; rewritten.
    """
    seen = _read(cache)

    def look(file: InputFile) -> tuple[str | None, str]:
        now = stamp(file.path)
        known = seen.get(file.path)
        return now, known[1] if known and now and known[0] == now else digest_file(file.path)

    with ThreadPoolExecutor(_THREADS) as pool:
        found = tuple(pool.map(look, inputs))
    entries = {file.path: entry for file, entry in zip(inputs, found, strict=True)}
    write_atomically(cache, json.dumps(entries).encode())
    return Seen(
        digests=tuple(digest for _, digest in found), stamps=tuple(stamp for stamp, _ in found)
    )


def stamps_now(paths: Sequence[str]) -> tuple[str | None, ...]:
    """The stamps that files have now, (files,)."""
    if not any(map(is_url, paths)):
        return tuple(map(stamp, paths))
    with ThreadPoolExecutor(_THREADS) as pool:
        return tuple(pool.map(stamp, paths))


def word_of(stamps: Sequence[str | None]) -> str:
    """Stamps in one short word, for receipts."""
    return fingerprint(list(stamps))[:32]


def _read(cache: Path) -> dict[str, list[str]]:
    """What earlier runs saw; nothing where the cache is missing or damaged."""
    try:
        seen = json.loads(cache.read_bytes())
    except (OSError, ValueError):
        return {}
    return seen if isinstance(seen, dict) else {}
