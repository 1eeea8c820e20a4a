"""Digests of input files, kept between runs.

A store is keyed by its inputs' content, so every run digests every file; a file that is
stamped as the cache has it (size and modification time; of a URL, what its store says) is not read
again.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from pipeline.reading.listing import InputFile
from pipeline.reading.storage import digest_file, stamp
from pipeline.shard.atomic import write_atomically

_THREADS = 8


def digest_inputs(inputs: Sequence[InputFile], *, cache: Path) -> tuple[str, ...]:
    """XXH3-128 of each file's content, in order.

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
    return tuple(digest for _, digest in found)


def _read(cache: Path) -> dict[str, list[str]]:
    """What earlier runs saw; nothing where the cache is missing or damaged."""
    try:
        seen = json.loads(cache.read_bytes())
    except (OSError, ValueError):
        return {}
    return seen if isinstance(seen, dict) else {}
