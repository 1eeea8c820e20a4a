"""Files that appear whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
from collections.abc import Iterator
from pathlib import Path

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""What a system says that has no room for more of a file."""


@contextlib.contextmanager
def named_when_full(path: Path) -> Iterator[None]:
    """Say of which file a full disk is, and what to do."""
    try:
        yield
    except OSError as error:
        if error.errno not in _FULL:
            raise
        reason = f"{os.strerror(error.errno)}; make room, then run the same command again"
        raise OSError(error.errno, reason, str(path)) from error


@contextlib.contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """A temporary name to write to; on success it is synced and renamed to `path`.

    Every try has a name of its own, `.NAME.RANDOM.tmp`, since a worker whose driver was killed may
    still write when the next run begins. What a killed writer leaves is for `remove_temporary`.

    Raises:
        OSError: among others a full disk, in a line that names the file and says what to do.
    """
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


def remove_temporary(directory: Path) -> None:
    """Remove what killed writers left in a directory where nobody writes now."""
    for path in directory.glob(".*.tmp"):
        path.unlink(missing_ok=True)


def write_atomically(path: Path, content: bytes) -> None:
    """Write a small file whole or not at all."""
    with atomic_path(path) as temporary:
        temporary.write_bytes(content)
