"""Digests of input files, kept between runs.

A store is keyed by its inputs' content, so every run digests every file; a file whose size and
modification time stand in the cache is not read again.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from pipeline.shard.atomic import write_atomically
from pipeline.sources import InputFile, digest_input

_THREADS = 8


def digest_inputs(inputs: Sequence[InputFile], *, cache: Path) -> tuple[str, ...]:
    """XXH3-128 of each file's content, in order.

    Args:
        inputs: the files of one source.
        cache: JSON of what earlier runs saw; rewritten.
    """
    seen = _read(cache)
    stamps = [f"{file.bytes}-{Path(file.path).stat().st_mtime_ns}" for file in inputs]

    def digest(file: InputFile, stamp: str) -> str:
        known = seen.get(file.path)
        return known[1] if known and known[0] == stamp else digest_input(file.path)

    with ThreadPoolExecutor(_THREADS) as pool:
        digests = tuple(pool.map(digest, inputs, stamps))
    entries = {
        file.path: [stamp, value]
        for file, stamp, value in zip(inputs, stamps, digests, strict=True)
    }
    write_atomically(cache, json.dumps(entries).encode())
    return digests


def _read(cache: Path) -> dict[str, list[str]]:
    """What earlier runs saw; nothing where the cache is missing or damaged."""
    try:
        seen = json.loads(cache.read_bytes())
    except (OSError, ValueError):
        return {}
    return seen if isinstance(seen, dict) else {}
