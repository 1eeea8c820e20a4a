"""One run at a time saves to a directory.

Rank 0 holds a lock on a file in it. The system gives it up with the process, however that ends, so
what a killed run leaves is never in the way.
"""

from __future__ import annotations

import fcntl
import os
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from trainer.errors import TrainerError

FILE = "lock"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLock:
    """Holds a directory as long as there is this object."""

    file: TextIO
    warning: str
    """Why other runs are not kept away, or ""."""


def hold(directory: Path) -> RunLock:
    """Hold a directory against other runs, also of other machines where its file system tells them.

    Raises:
        TrainerError: another run holds it.
        OSError: the file cannot be opened.
    """
    file = (directory / FILE).open("a+", encoding="utf-8")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.seek(0)
        holder = file.read().strip() or "process unknown"
        file.close()
        raise TrainerError(
            f"{directory}: another run ({holder}) saves its checkpoints here; wait for it to end, "
            "or name another checkpoint.directory for one of them"
        ) from None
    except OSError as error:  # some network file systems have no locks
        warning = f"{directory}: cannot be locked ({error.strerror}): give it to one run at a time"
        return RunLock(file=file, warning=warning)
    file.truncate(0)
    file.write(f"process {os.getpid()} on {socket.gethostname()}\n")
    file.flush()
    return RunLock(file=file, warning="")
