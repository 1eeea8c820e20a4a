"""Run a command and account for all of its processes: `python -m jobs.bench.launch NOTE S COMMAND`.

What the command leaves behind becomes a child of this process (a Linux "subreaper"), so the CPU
time of daemons, and of children that nobody waits for, is counted as well. NOTE gets the result;
the command is killed after S seconds.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import sys
import time
from pathlib import Path

_PR_SET_CHILD_SUBREAPER = 36
_GRACE_S = 10.0
"""Time for daemons to end by themselves once the command has ended."""
_EVERY_S = 0.01


def main(note: Path, limit_s: float, command: list[str]) -> None:
    """Run the command to its end, then wait for what it left."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    started = time.perf_counter()
    leader = os.posix_spawnp(command[0], command, os.environ)
    code: int | None = None
    seconds, deadline = 0.0, started + limit_s
    timed_out = False
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            break
        if pid == leader:
            seconds, code = time.perf_counter() - started, os.waitstatus_to_exitcode(status)
            deadline = time.perf_counter() + _GRACE_S
        elif pid == 0:
            if time.perf_counter() > deadline:
                timed_out = timed_out or code is None
                _kill_children()
            time.sleep(_EVERY_S)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    result = {
        "seconds": seconds,
        "cpu_seconds": used.ru_utime + used.ru_stime,
        "returncode": code,
        "timed_out": timed_out,
    }
    note.write_text(json.dumps(result))


def _kill_children() -> None:
    import psutil

    for child in psutil.Process().children(recursive=True):
        try:
            child.kill()
        except psutil.NoSuchProcess:
            continue


if __name__ == "__main__":
    main(Path(sys.argv[1]), float(sys.argv[2]), sys.argv[3:])
