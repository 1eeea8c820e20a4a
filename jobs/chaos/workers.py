"""Kills of Ray's workers while a job runs, and of Ray itself."""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from jobs.chaos import runs
from jobs.chaos.result import Case
from jobs.chaos.undisturbed import Undisturbed

_TASKS = ("_write_ids", "_tokenize_split", "scatter_run", "_assemble_shard", "_write_cp_part")
"""Functions that workers run, in the order of a build's stages."""
_POLL_S = 0.002
_LIMIT_S = 240


def kill_workers(whole: Undisturbed, kills: int, seed: int) -> Iterator[Case]:
    """Kill workers in the middle of a task, one a stage of each run; Ray tries those again."""
    draw = random.Random(seed)
    while kills:
        out, killed = whole.new(), list[str]()
        strike = partial(_strike_next, list(_TASKS[:kills]), killed, draw)
        ended = _watched(whole, out, strike)
        kills -= len(killed)
        fault = ended.line or (ended.errors[-400:] if ended.status else "") or whole.end(out)
        for title in killed:
            done = f"worker at {title}; {len(killed)} in this run"
            yield Case(
                fault=f"{whole.job.name}: worker killed", done=done, held=not fault, seen=fault
            )
        shutil.rmtree(out)


def _strike_next(ahead: list[str], killed: list[str], draw: random.Random, driver: int) -> None:
    """Kill a worker that runs one of the functions `ahead`; go on with those after it."""
    for pid, title in runs.busy_workers(driver).items():
        if title in ahead:
            time.sleep(draw.uniform(0, 0.02))
            runs.kill(pid)
            killed.append(title)
            del ahead[: ahead.index(title) + 1]
            return


def kill_every_worker(whole: Undisturbed) -> Iterator[Case]:
    """Kill every worker that tokenizes, until Ray gives up; then let the build be."""
    out, killed = whole.new(), [0]

    def strike(driver: int) -> None:
        workers = [pid for pid, title in runs.busy_workers(driver).items() if "token" in title]
        runs.kill(*workers)
        killed[0] += len(workers)

    yield _given_up(whole, out, _watched(whole, out, strike), "retries used up", killed)


def kill_raylet(whole: Undisturbed, seed: int) -> Iterator[Case]:
    """Kill the raylet under a build: it stops in one line, and goes on when run again."""
    out, killed = whole.new(), [0]
    delay = random.Random(seed).uniform(0, 0.2)

    def strike(driver: int) -> None:
        if not killed[0] and runs.busy_workers(driver):
            time.sleep(delay)
            raylets = [pid for pid, (_, words) in runs.family(driver).items()
                       if words.partition(" ")[0].endswith("/raylet")]  # fmt: skip
            runs.kill(*raylets)
            killed[0] += len(raylets)

    yield _given_up(whole, out, _watched(whole, out, strike), "raylet killed", killed)


def _given_up(
    whole: Undisturbed, out: Path, ended: runs.Ended, fault: str, killed: list[int]
) -> Case:
    """One line and status 2, and the build goes on when run again."""
    clear = ended.status == 2 and bool(ended.line) and not ended.traceback
    wrong = whole.end(out)
    shutil.rmtree(out)
    return Case(
        fault=fault,
        done=f"{killed[0]} processes killed",
        held=clear and not wrong and killed[0] > 0,
        seen=wrong or ended.line or f"status {ended.status}: {ended.errors[-400:]}",
    )


def _watched(whole: Undisturbed, out: Path, strike: Callable[[int], None]) -> runs.Ended:
    """Run a build, calling `strike` with its process over and over while it runs."""
    errors = whole.scratch / "errors"
    began = time.monotonic()
    with errors.open("wb") as file:
        driver = runs.start(whole.job.command(out), file)
        while driver.poll() is None and time.monotonic() - began < _LIMIT_S:
            strike(driver.pid)
            time.sleep(_POLL_S)
        if driver.poll() is None:
            runs.kill(driver.pid, *runs.family(driver.pid))
    return runs.Ended(status=driver.wait(), errors=errors.read_text(errors="replace"))
