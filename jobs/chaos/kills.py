"""Kills of a job's driver, at every stage, and what running it again makes of it."""

from __future__ import annotations

import os
import random
import shutil
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from jobs.chaos import runs
from jobs.chaos.result import Case
from jobs.chaos.undisturbed import Undisturbed
from jobs.chaos.witness import Witness, content_of
from pipeline.publish import WORK, is_unfinished

_MOST_IN_FLIGHT = 2
"""Units that two workers run at a time; what they ended they have noted."""
_AGENTS = ("ray::DashboardAgent", "ray::RuntimeEnvAgent")
"""Processes of Ray that run none of our tasks and may outlive a killed driver for a while."""
_YIELDING = 10
"""A driver of this niceness does not get past a stage of milliseconds while its watcher waits."""
_PUBLICATION = f"{WORK}/publish"
"""Where a publication is prepared, and kept until all of it has moved."""
_POLL_S = 0.002
_LIMIT_S = 120
_MOST_MISSES = 20
"""Kills in a row that came too late; then the job is too fast for them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kill:
    """A driver's death: when, what had a receipt then, and what must be done again."""

    words: str
    kept: dict[Path, tuple[int, int]]
    lost: list[str]
    family: dict[int, tuple[int, str]]
    in_publication: bool
    seen: str
    """What was wrong with what readers then got; empty where nothing was."""


def kill_drivers(whole: Undisturbed, kills: int, seed: int) -> Iterator[Case]:
    """Kill drivers, some jobs up to four times, and run each job to its end.

    Stages are dealt from a deck, so that every one is hit before one comes again, publishing first,
    so that few kills have it too. In its stage a kill comes after a random number of units and a
    random instant. With even chances the driver dies alone, so that Ray's processes must notice it,
    or with all of them. After every kill the set is read: it is what it was before the job, or what
    the job makes.
    """
    draw = random.Random(seed)
    stages = whole.job.stages
    contents = {content_of(whole.whole), whole.job.given and content_of(whole.job.given)}
    deck = sorted(draw.sample(stages, len(stages)), key="publish".__eq__)  # first of all
    misses = 0
    while kills:
        hand: set[str] = set()
        for _ in range(min(kills, draw.randint(1, 4))):
            deck = deck or draw.sample(stages, len(stages))
            if deck[-1] not in hand:
                hand.add(deck.pop())
        out, killed = whole.new(), list[_Kill]()
        witness = Witness(out, contents)
        for stage in sorted(hand, key=stages.index):
            kill = _kill_in(whole, out, stage, draw, witness)
            if kill is None:  # it was too fast; its turn comes with the next deck
                misses += 1
            else:
                killed.append(kill)
                misses = 0
        kills -= len(killed)
        fault = whole.end(out) or witness.fault()
        for kill in killed:
            yield _judged(whole, kill, fault, len(killed))
        if misses >= _MOST_MISSES:
            missed = f"{misses} kills came too late"
            yield Case(fault=_fault(whole), done=missed, held=False)
            return
        shutil.rmtree(out)


def _fault(whole: Undisturbed) -> str:
    return f"{whole.job.name}: driver killed"


def _judged(whole: Undisturbed, kill: _Kill, fault: str, kills: int) -> Case:
    again = sum(
        not path.exists() or (path.stat().st_ino, path.stat().st_mtime_ns) != mark
        for path, mark in kill.kept.items()
    )
    alive = runs.family(1)
    left = [words for pid, (_, words) in kill.family.items() if alive.get(pid, (0, ""))[1] == words]
    workers = [words for words in left if words not in _AGENTS]
    seen = kill.seen or fault
    if again:
        seen = seen or f"{again} units were made again though they had receipts"
    if len(kill.lost) > _MOST_IN_FLIGHT:
        seen = seen or f"units lost: {kill.lost}"
    if workers:
        seen = seen or f"processes that still run: {workers}"
    figures = {
        "MB compared": whole.bytes / 1e6 / kills,
        "between two moves": int(kill.in_publication),
    }
    if whole.job.goes_on:
        figures |= {
            "units kept": len(kill.kept),
            "units redone": len(kill.lost),
            "most redone after a kill": len(kill.lost),
            "agents of Ray still there": len(left) - len(workers),
        }
    return Case(
        fault=_fault(whole),
        done=f"{kill.words}; {kills} in this run",
        held=not seen,
        seen=seen,
        figures=figures,
    )


def _kill_in(
    whole: Undisturbed, out: Path, stage: str, draw: random.Random, witness: Witness
) -> _Kill | None:
    """Run a job and kill it in a stage; None where it ended before."""
    if whole.has_ended(out):
        return None
    before = runs.stages_done(out)
    units = draw.randint(0, max(0, whole.stages.get(stage, 0) - before.get(stage, 0) - 1))
    target = before.get(stage, 0) + units + 1
    start = min(4.0, whole.seconds / 2)
    delay = draw.uniform(0, {"start": start, "plan": 0.6, "publish": 0.001}.get(stage, 0.03))
    alone, among_moves = draw.random() < 0.5, draw.random() < 0.75
    began = time.time()
    with (whole.scratch / "errors").open("wb") as errors:
        driver = runs.start(whole.job.command(out), errors)
        if stage == "publish":
            os.setpriority(os.PRIO_PROCESS, driver.pid, _YIELDING)
        while not _is_there(whole, out, stage, target):
            if driver.poll() is not None or time.time() - began > _LIMIT_S:
                driver.kill()
                driver.wait()
                return None
            time.sleep(_POLL_S if stage != "publish" else 0)
        if stage == "publish" and among_moves:
            while (out / _PUBLICATION).exists() and not is_unfinished(out):
                time.sleep(0)
        time.sleep(delay)
        os.kill(driver.pid, signal.SIGSTOP)  # its family takes longer to find than some stages do
        family = runs.family(driver.pid)
        if driver.poll() is not None:
            return None
        runs.kill(driver.pid, *(() if alone else family))
        driver.wait()
    if whole.has_ended(out):
        return None
    done = target - 1 - whole.given_stages.get(stage, 0)
    return _Kill(
        words=f"in {stage!r} after {done} units, {'alone' if alone else 'with its workers'}",
        kept=_kept(whole, out),
        lost=runs.lost_units(out, began) if whole.job.goes_on else [],
        family=family,
        in_publication=is_unfinished(out),
        seen=witness.fault(),
    )


def _kept(whole: Undisturbed, out: Path) -> dict[Path, tuple[int, int]]:
    """Files of units that must not be made again, beside those of the set that was given."""
    if not whole.job.goes_on:
        return {}
    given = whole.job.given or Path()
    return {
        path: mark
        for path, mark in runs.in_place(out).items()
        if whole.job.given is None or not (given / path.relative_to(out)).exists()
    }


def _is_there(whole: Undisturbed, out: Path, stage: str, target: int) -> bool:
    if stage == "start":
        return True
    if stage == "plan":
        return sum(1 for _ in out.glob("store/*/source.json")) == whole.job.stores
    if stage == "publish":
        return (out / _PUBLICATION).exists()
    return runs.stages_done(out)[stage] >= target
