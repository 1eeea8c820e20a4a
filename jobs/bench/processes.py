"""What a command costs: wall time, CPU time and memory of it and of every process below it."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

_EVERY_S = 0.25
_SAMPLING_SHARE = 0.05
"""Most of a core that looking at memory may take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What a command used.

    `cpu_seconds` is the larger of two sums that each may miss something: what the system says of
    all children that somebody waited for (raylets do not wait for their workers), and the last
    that was seen of each process (what ran between two looks is missed).

    `peak_bytes` is the largest sum, over its processes at one time, of private memory and shares of
    shared memory (PSS), without pages of mapped files: those are `mapped_bytes`.
    """

    seconds: float
    cpu_seconds: float
    peak_bytes: int
    mapped_bytes: int
    returncode: int
    timed_out: bool


def measure(
    command: list[str],
    *,
    directory: Path,
    environment: Mapping[str, str],
    log: Path,
    limit_s: float,
) -> Usage:
    """Run a command in `directory`; its output goes to `log`."""
    note = log.with_suffix(".usage")
    launch = [sys.executable, str(Path(__file__).with_name("launch.py")), str(note), str(limit_s)]
    peak = mapped = 0
    seen: dict[tuple[int, float], float] = {}
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*launch, *command],
            cwd=directory,
            env=dict(environment),
            stdout=output,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
        )
        try:
            while process.poll() is None:
                started = time.perf_counter()
                now = memory_below(process.pid)
                peak, mapped = max(peak, now[0]), max(mapped, now[1])
                seen |= _cpu_below(process.pid)
                took = time.perf_counter() - started
                time.sleep(max(_EVERY_S, took / _SAMPLING_SHARE))
        finally:
            if process.poll() is None:
                process.terminate()
    result = json.loads(note.read_text())
    note.unlink()
    result["cpu_seconds"] = max(result["cpu_seconds"], sum(seen.values()))
    return Usage(peak_bytes=peak, mapped_bytes=mapped, **result)


def memory_below(pid: int) -> tuple[int, int]:
    """Bytes of private and shared memory, and of mapped files, of all processes below one."""
    private = mapped = 0
    try:
        processes = psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return 0, 0
    for process in processes:
        try:
            text = Path(f"/proc/{process.pid}/smaps_rollup").read_text()
        except OSError:
            continue  # it ended in the meantime
        sizes = {
            words[0]: int(words[1]) * 1024
            for words in (line.split() for line in text.splitlines()[1:])
            if words
        }
        private += sizes.get("Pss_Anon:", 0) + sizes.get("Pss_Shmem:", 0)
        mapped += sizes.get("Pss_File:", 0)
    return private, mapped


def _cpu_below(pid: int) -> dict[tuple[int, float], float]:
    """CPU seconds so far of each process below one, by its number and start."""
    used = {}
    with suppress(psutil.NoSuchProcess):  # the next look has those after it
        for process in psutil.Process(pid).children(recursive=True):
            times = process.cpu_times()
            used[process.pid, process.create_time()] = times.user + times.system
    return used
