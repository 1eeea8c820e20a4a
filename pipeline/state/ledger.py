"""Which parts are finished: a journal that the driver alone writes.

A part exists when the ledger says so. Workers write a part under a temporary name, rename it (or
put it, in an object store), and return a receipt; the driver appends the receipt and syncs. A line
torn by a crash is dropped, so its part is made again. A receipt is found only under the key of its
stage, which names everything the part depends on. A unit's newest entry alone counts, and before a
unit is written anew its old receipt is forgotten, so that a receipt never speaks of files that
another configuration wrote.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Self

import xxhash

from pipeline.files.atomic import remove_files, remove_tree, write_atomically
from pipeline.files.sizes import Sizes
from pipeline.state.journal import open_journal, remove_journal
from pipeline.state.lock import Hold

Receipt = dict[str, Any]
_JOINED_FROM = 64
"""So many chunks of a journal are made one when it is opened."""


class Ledger:
    """Receipts by unit, each with the key of its stage; see the module's docstring.

    Args:
        path: of its journal.
        hold: of the directory that it is in; checked before anything is put on record.
    """

    def __init__(self, path: Path, hold: Hold | None = None) -> None:
        self.path = path
        self._hold = hold
        self._receipts: dict[str, tuple[str, Receipt | None]] = {}
        self._journal = open_journal(path)
        chunks = list(self._journal.chunks())
        good = []
        for chunk in chunks:
            entries = list(_entries(chunk))
            self._receipts |= {e["unit"]: (e["key"], e["receipt"]) for e, _ in entries}
            good.append(chunk[: sum(length for _, length in entries)])
        if good != chunks or len(chunks) >= _JOINED_FROM:
            self._journal.restart(b"".join(good))
        self._notes = Sizes(notes_of(path))

    def receipt(self, key: str, unit: str) -> Receipt | None:
        """The receipt of a finished unit, or None."""
        found, receipt = self._receipts.get(unit, (key, None))
        return receipt if found == key else None

    def record(self, key: str, unit: str, receipt: Receipt) -> None:
        """Declare a unit finished; its files must be in place. A note of it is needed no more."""
        self._append([(key, unit, receipt)])
        remove_files([self.note_path(unit)])

    def forget(self, units: Iterable[str]) -> None:
        """Declare units unfinished whose files are about to be written."""
        gone = list(units)
        remove_files(map(self.note_path, gone))
        self._append([("", unit, None) for unit in gone if unit in self._receipts])

    def note_path(self, unit: str) -> Path:
        """Where the worker that finishes a unit notes its receipt, for `noted`."""
        return notes_of(self.path) / f"{unit.replace('/', '-')}.json"

    def noted(self, key: str, unit: str) -> Receipt | None:
        """What a worker noted that finished a unit when there was no driver to tell; or None."""
        path = self.note_path(unit)
        note = _parse(path.read_bytes()) if self._notes.of(path.name) is not None else None
        if note is None or (note["key"], note["unit"]) != (key, unit):
            return None
        return note["receipt"]

    def _append(self, entries: list[tuple[str, str, Receipt | None]]) -> None:
        if not entries:
            return
        if self._hold is not None:
            self._hold.check()
        self._journal.append(b"".join(_line(*entry) for entry in entries))
        self._receipts |= {unit: (key, receipt) for key, unit, receipt in entries}

    def remove(self) -> None:
        """Forget everything: the stage is published elsewhere."""
        self.close()
        remove_ledger(self.path)

    def close(self) -> None:
        self._journal.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def remove_ledger(path: Path) -> None:
    """Remove a ledger that nobody has open, and workers' notes."""
    remove_journal(path)
    remove_tree(notes_of(path))


def notes_of(path: Path) -> Path:
    """The folder of workers' notes beside a ledger."""
    return path.with_suffix(".notes")


def write_note(path: Path, key: str, unit: str, receipt: Receipt) -> None:
    """Note a finished unit's receipt, whose files are in place; a worker's part of `noted`."""
    write_atomically(path, _line(key, unit, receipt))


def entries_of(content: bytes) -> Iterator[dict[str, Any]]:
    """Entries of a ledger's bytes up to the first torn line: `key`, `unit`, `receipt` or None."""
    return (entry for entry, _ in _entries(content))


def _entries(content: bytes) -> Iterator[tuple[dict[str, Any], int]]:
    """The same, each with the bytes of its line."""
    for line in content.splitlines(keepends=True):
        entry = _parse(line)
        if entry is None:
            return
        yield entry, len(line)


def _line(key: str, unit: str, receipt: Receipt | None) -> bytes:
    entry = {"key": key, "unit": unit, "receipt": receipt}
    body = json.dumps(entry, sort_keys=True, separators=(",", ":"))
    return f"{_checksum(body)} {body}\n".encode()


def _checksum(body: str) -> str:
    return xxhash.xxh3_64_hexdigest(body.encode())


def _parse(line: bytes) -> dict[str, Any] | None:
    """A ledger line's entry, or None where the line is torn or damaged."""
    if not line.endswith(b"\n"):
        return None
    checksum, _, body = line.decode(errors="replace").rstrip("\n").partition(" ")
    return json.loads(body) if checksum == _checksum(body) else None
