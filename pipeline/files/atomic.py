"""Files that appear whole or not at all, on a disk or in an object store.

An object store has no rename: what is written there is written to a local temporary file first and
then put under its final name. Were the put cut short, the job's ledger would not have the file.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from pipeline.files.storage import AT_ONCE, FULL, list_files, upload
from pipeline.files.storage import move as move_object
from pipeline.files.url_path import is_remote


@contextlib.contextmanager
def named_when_full(path: Path) -> Iterator[None]:
    """Say of which file a full disk is, and what to do."""
    try:
        yield
    except OSError as error:
        if error.errno not in FULL:
            raise
        reason = f"{os.strerror(error.errno)}; make room, then run the same command again"
        raise OSError(error.errno, reason, str(path)) from error


@contextlib.contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """A temporary local name to write to; on success it is synced and renamed to `path`, or put.

    Every try has a name of its own, `.NAME.RANDOM.tmp`, since a worker whose driver was killed may
    still write when the next run begins. What a killed writer leaves is for `remove_temporary`.

    Raises:
        OSError: among others a full disk, in a line that names the file and says what to do.
    """
    if is_remote(path):
        with _uploaded(path) as temporary:
            yield temporary
        return
    with named_when_full(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
        try:
            yield temporary
            with temporary.open("rb+") as file:
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise


@contextlib.contextmanager
def _uploaded(path: Path) -> Iterator[Path]:
    """A temporary local name, what is written there goes to the object store."""
    with tempfile.TemporaryDirectory(prefix="steelyard-put-") as directory:
        temporary = Path(directory) / path.name
        with named_when_full(temporary):
            yield temporary
        upload(str(temporary), str(path))


def remove_temporary(directory: Path) -> None:
    """Remove what killed writers left in a directory where nobody writes now."""
    if is_remote(directory):
        return  # what was never put was never there
    for path in directory.glob(".*.tmp"):
        path.unlink(missing_ok=True)


def write_atomically(path: Path, content: bytes) -> None:
    """Write a small file whole or not at all."""
    with atomic_path(path) as temporary:
        temporary.write_bytes(content)


def move(path: Path, target: Path) -> None:
    """Give a file another name beside it, in place of what has that name."""
    if is_remote(path):
        move_object(str(path), str(target))
    else:
        target.parent.mkdir(parents=True, exist_ok=True)
        os.replace(path, target)


def remove_tree(directory: Path) -> None:
    """Remove a directory with all that is in it; nothing where it is not there."""
    if is_remote(directory):
        remove_files(directory / name for name in list_files(str(directory), hidden=True))
    else:
        shutil.rmtree(directory, ignore_errors=True)


def remove_files(paths: Iterable[Path]) -> None:
    """Remove files, of an object store many at a time."""
    places = list(paths)
    if not any(map(is_remote, places)):
        for path in places:
            path.unlink(missing_ok=True)
        return
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for _ in pool.map(lambda path: path.unlink(missing_ok=True), places):
            pass
