"""One job at a time on a directory, on a disk or in an object store."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from pipeline.files.url_path import is_remote
from pipeline.state.remote_lock import Busy, held_in_store

__all__ = ["Busy", "Hold", "exclusive"]


class Hold(Protocol):
    """A directory that is held."""

    def check(self) -> None:
        """Nothing while it is held.

        Raises:
            Busy: another job took it over, from a job that seemed dead.
        """
        ...


@contextlib.contextmanager
def exclusive(directory: Path) -> Iterator[Hold]:
    """Hold `directory` against other jobs: on a disk those on this machine, in a store all.

    The lock dies with its process; in a store others notice it after a minute, on the same machine
    at once (`pipeline.state.remote_lock`).

    Args:
        directory: working state of what is held; the lock is a file in it.

    Raises:
        Busy: another process holds it.
    """
    if is_remote(directory):
        with held_in_store(directory) as hold:
            yield hold
        return
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
        yield _Locked()


class _Locked:
    """The system keeps the lock while the file is open."""

    def check(self) -> None:
        pass
