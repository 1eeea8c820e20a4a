"""Files that appear whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import os
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

    The temporary name is the same for every try, so a killed writer leaves at most one file, which
    the next try overwrites.

    Raises:
        OSError: among others a full disk, in a line that names the file and says what to do.
    """
    with named_when_full(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.tmp")
        try:
            yield temporary
            with temporary.open("rb+") as file:
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise


def write_atomically(path: Path, content: bytes) -> None:
    """Write a small file whole or not at all."""
    with atomic_path(path) as temporary:
        temporary.write_bytes(content)
