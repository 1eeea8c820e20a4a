"""Whoever reads a set while jobs that work on it die: what was there, or what comes, and whole."""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from pathlib import Path

from pipeline.shard.rank_reader import Reader
from pipeline.shard.reader import open_plan, open_shards
from pipeline.shard.tables import FormatError


def content(reader: Reader) -> str:
    """One digest of all micro-batches that a reader gives."""
    found = hashlib.sha256(f"{reader.num_steps}".encode())
    for step in range(reader.num_steps):
        for slot in range(reader.manifest.segment_of(step).num_micro_batches):
            batch = reader.micro_batch(step, slot)
            for array in (batch.tokens, batch.cu_seqlens, batch.last_labels):
                found.update(array.tobytes())
    return found.hexdigest()


def content_of(root: Path) -> str | None:
    """The content of a set; None where there is none.

    Raises:
        FormatError: a reader refuses it, or the two readers give different things.
    """
    if not (root / "manifest.json").exists():
        return None
    shards, plan = content(open_shards(root)), content(open_plan(root))
    if shards != plan:
        raise FormatError("shards and plan give different things", path=root)
    return shards


class Witness:
    """Reads a directory, now and later.

    Args:
        root: the directory; a set that is there is opened now, and stays open.
        contents: what may be read there; None for no set.
    """

    def __init__(self, root: Path, contents: Collection[str | None]) -> None:
        self._root = root
        self._contents = contents
        self._open = open_shards(root) if (root / "manifest.json").exists() else None
        self._before = content(self._open) if self._open else ""
        self._digest = self._open.steps_digest(self._open.num_steps) if self._open else ""

    def fault(self) -> str:
        """What is wrong with what readers get at this moment; empty where nothing is."""
        try:
            if content_of(self._root) not in self._contents:
                return "a reader gave neither what was there nor what comes"
            if self._open is None:
                return ""
            same = content(self._open.another()) == self._before
            if not same or self._open.steps_digest(self._open.num_steps) != self._digest:
                return "a reader that was opened before gives something else"
        except FormatError as error:
            return f"a reader met: {error}"
        return ""
