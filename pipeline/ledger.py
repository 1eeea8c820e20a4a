"""Which parts are finished: one append-only file that the driver alone writes.

A part exists when the ledger says so. Workers write a part under a temporary name, rename it, and
return a receipt; the driver appends the receipt and syncs. A line torn by a crash is dropped, so
its part is made again. A receipt is found only under the key of its stage, which names everything
the part depends on. A unit's newest entry alone counts, and before a unit is written anew its old
receipt is forgotten, so that a receipt never speaks of files that another configuration wrote.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Self

import xxhash

from pipeline.shard.atomic import named_when_full, write_atomically

Receipt = dict[str, Any]


class Ledger:
    """Receipts by unit, each with the key of its stage; see the module's docstring."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._receipts: dict[str, tuple[str, Receipt | None]] = {}
        path.parent.mkdir(parents=True, exist_ok=True)
        text = path.read_bytes() if path.exists() else b""
        good = 0
        for entry, length in _entries(text):
            self._receipts[entry["unit"]] = entry["key"], entry["receipt"]
            good += length
        if good < len(text):
            write_atomically(path, text[:good])
        self._file = path.open("ab")

    def receipt(self, key: str, unit: str) -> Receipt | None:
        """The receipt of a finished unit, or None."""
        found, receipt = self._receipts.get(unit, (key, None))
        return receipt if found == key else None

    def record(self, key: str, unit: str, receipt: Receipt) -> None:
        """Declare a unit finished; its files must be in place. A note of it is needed no more."""
        self._append([(key, unit, receipt)])
        self.note_path(unit).unlink(missing_ok=True)

    def forget(self, units: Iterable[str]) -> None:
        """Declare units unfinished whose files are about to be written."""
        gone = list(units)
        for unit in gone:
            self.note_path(unit).unlink(missing_ok=True)
        self._append([("", unit, None) for unit in gone if unit in self._receipts])

    def note_path(self, unit: str) -> Path:
        """Where the worker that finishes a unit notes its receipt, for `noted`."""
        return notes_of(self.path) / f"{unit.replace('/', '-')}.json"

    def noted(self, key: str, unit: str) -> Receipt | None:
        """What a worker noted that finished a unit when there was no driver to tell; or None."""
        path = self.note_path(unit)
        note = _parse(path.read_bytes()) if path.exists() else None
        if note is None or (note["key"], note["unit"]) != (key, unit):
            return None
        return note["receipt"]

    def _append(self, entries: list[tuple[str, str, Receipt | None]]) -> None:
        with named_when_full(self.path):
            for key, unit, receipt in entries:
                self._file.write(_line(key, unit, receipt))
                self._receipts[unit] = key, receipt
            self._file.flush()
            os.fsync(self._file.fileno())

    def remove(self) -> None:
        """Forget everything: the stage is published elsewhere."""
        self.close()
        remove_ledger(self.path)

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def remove_ledger(path: Path) -> None:
    """Remove a ledger that nobody has open, and workers' notes."""
    path.unlink(missing_ok=True)
    shutil.rmtree(notes_of(path), ignore_errors=True)


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
