"""One job at a time on a directory."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path


class Busy(RuntimeError):
    """Another process works on the directory."""


@contextlib.contextmanager
def exclusive(directory: Path) -> Iterator[None]:
    """Hold `directory` against other jobs on this machine; the lock dies with its process.

    Args:
        directory: working state of what is held; the lock is a file in it.

    Raises:
        Busy: another process holds it.
    """
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / "lock").open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.seek(0)
            raise Busy(
                f"another job (process {file.read().strip() or '?'}) holds {directory}; "
                "wait for it to end, or choose another directory"
            ) from None
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        yield
