"""An append-only file of lines; in an object store, where nothing is appended to, many small ones.

A journal has one writer. What was appended is on record when `append` returns.
"""

from __future__ import annotations

import os
import re
import secrets
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Protocol

from pipeline.files.atomic import named_when_full, remove_files, remove_tree, write_atomically
from pipeline.files.storage import AT_ONCE, list_files
from pipeline.files.url_path import is_remote

_NAME = re.compile(r"\d{8}-[0-9a-f]{8}")


class Journal(Protocol):
    """Chunks of bytes in the order in which they came; a crash may have torn the end of each."""

    def chunks(self) -> list[bytes]:
        """What is on record."""
        ...

    def restart(self, content: bytes) -> None:
        """Put this in the place of all chunks."""
        ...

    def append(self, content: bytes) -> None:
        """Put on record.

        Raises:
            OSError: among others a full disk, in a line that names the file and says what to do.
        """
        ...

    def close(self) -> None: ...


def open_journal(path: Path) -> Journal:
    """The journal at a path, empty where there is none."""
    return _Objects(path) if is_remote(path) else _File(path)


def remove_journal(path: Path) -> None:
    """Remove a journal that nobody has open."""
    if is_remote(path):
        remove_tree(path)
    else:
        path.unlink(missing_ok=True)


class _File:
    def __init__(self, path: Path) -> None:
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("ab")

    def chunks(self) -> list[bytes]:
        return [self._path.read_bytes()]

    def restart(self, content: bytes) -> None:
        self._file.close()
        write_atomically(self._path, content)
        self._file = self._path.open("ab")

    def append(self, content: bytes) -> None:
        with named_when_full(self._path):
            self._file.write(content)
            self._file.flush()
            os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()


class _Objects:
    """Objects `PATH/NUMBER-WRITER`, so that no two writers ever write the same one."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._writer = secrets.token_hex(4)
        self._names = sorted(filter(_NAME.fullmatch, list_files(str(path))))
        self._next = 1 + max((int(name.partition("-")[0]) for name in self._names), default=-1)

    def chunks(self) -> list[bytes]:
        with ThreadPoolExecutor(AT_ONCE) as pool:
            return list(pool.map(lambda name: (self._path / name).read_bytes(), self._names))

    def restart(self, content: bytes) -> None:
        before = self._names
        self._names = []
        self.append(content)
        remove_files(self._path / name for name in before)

    def append(self, content: bytes) -> None:
        name = f"{self._next:08d}-{self._writer}"
        write_atomically(self._path / name, content)
        self._names.append(name)
        self._next += 1

    def close(self) -> None:
        pass
