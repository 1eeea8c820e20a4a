"""Kills of a build's driver, at every stage, and what running it again makes of it."""

from __future__ import annotations

import random
import shutil
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from jobs.chaos import runs
from jobs.chaos.corpus import write_corpus
from jobs.chaos.result import Case
from pipeline.publish import WORK

STAGES = ("start", "ids", "tokenize", "plan", "runs", "shards", "cp plans", "publish")
_SOURCES = 3
_MOST_IN_FLIGHT = 2
"""Units that two workers run at a time; what they ended they have noted."""
_AGENTS = ("ray::DashboardAgent", "ray::RuntimeEnvAgent")
"""Processes of Ray that run none of our tasks and may outlive a killed driver for a while."""
_POLL_S = 0.002
_LIMIT_S = 120


class Undisturbed:
    """A corpus, and what an undisturbed build of it holds."""

    def __init__(self, scratch: Path, *, documents: int = 800, executor: str = "ray") -> None:
        self.scratch = scratch
        self.config = write_corpus(scratch / "corpus", documents=documents, executor=executor)
        self.whole = scratch / "whole"
        self.stages: dict[str, int] = {}
        """Units of work by stage, as they were seen to come."""
        began = time.monotonic()
        with (scratch / "errors").open("wb") as errors:
            driver = runs.start(self.command(self.whole), errors)
            while driver.poll() is None:
                for stage, count in runs.stages_done(self.whole).items():
                    self.stages[stage] = max(count, self.stages.get(stage, 0))
                time.sleep(_POLL_S)
        if driver.returncode:
            raise RuntimeError(f"the undisturbed build failed: {(scratch / 'errors').read_text()}")
        self.seconds = time.monotonic() - began
        self.digests = runs.digests(self.whole)

    def command(self, out: Path) -> list[str]:
        return ["build", "--config", str(self.config), "--out", str(out)]

    def new(self) -> Path:
        """A directory to build in."""
        return Path(tempfile.mkdtemp(prefix="build-", dir=self.scratch))

    def end(self, out: Path) -> str:
        """Run a build to its end: nothing where the set is the undisturbed one, else the fault."""
        ended = runs.run(*self.command(out))
        if ended.status:
            return ended.line or ended.errors[-400:]
        found = runs.digests(out)
        names = sorted(found.keys() | self.digests.keys())
        if other := [name for name in names if found.get(name) != self.digests.get(name)]:
            return f"{len(other)} files have other bytes: {other[:3]}"
        return runs.run("verify", str(out), "--quiet").line


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kill:
    """A driver's death: when, what had a receipt then, and what must be done again."""

    words: str
    kept: dict[Path, tuple[int, int]]
    lost: list[str]
    family: dict[int, tuple[int, str]]


def kill_drivers(whole: Undisturbed, kills: int, seed: int) -> Iterator[Case]:
    """Kill drivers, some builds up to four times, and run each build to its end.

    Stages are dealt from a deck, so that every one is hit before one comes again; in its stage a
    kill comes after a random number of units and a random instant. With even chances the driver
    dies alone, so that Ray's processes must notice it, or with all of them.
    """
    draw = random.Random(seed)
    deck: list[str] = []
    while kills:
        hand: set[str] = set()
        for _ in range(min(kills, draw.randint(1, 4))):
            deck = deck or draw.sample(STAGES, len(STAGES))
            if deck[-1] not in hand:
                hand.add(deck.pop())
        out, killed = whole.new(), list[_Kill]()
        for stage in sorted(hand, key=STAGES.index):
            kill = _kill_in(whole, out, stage, draw)
            if kill is None:  # it was too fast
                deck.insert(0, stage)
            else:
                killed.append(kill)
        kills -= len(killed)
        fault = whole.end(out)
        for kill in killed:
            yield _judged(kill, fault, len(killed))
        shutil.rmtree(out)


def _judged(kill: _Kill, fault: str, kills: int) -> Case:
    again = sum(
        not path.exists() or (path.stat().st_ino, path.stat().st_mtime_ns) != mark
        for path, mark in kill.kept.items()
    )
    alive = runs.family(1)
    left = [words for pid, (_, words) in kill.family.items() if alive.get(pid, (0, ""))[1] == words]
    workers = [words for words in left if words not in _AGENTS]
    seen = fault
    if again:
        seen = seen or f"{again} units were made again though they had receipts"
    if len(kill.lost) > _MOST_IN_FLIGHT:
        seen = seen or f"units lost: {kill.lost}"
    if workers:
        seen = seen or f"processes that still run: {workers}"
    return Case(
        fault="driver killed",
        done=f"{kill.words}; {kills} in this build",
        held=not seen,
        seen=seen,
        figures={
            "units kept": len(kill.kept),
            "units redone": len(kill.lost),
            "most redone after a kill": len(kill.lost),
            "agents of Ray still there": len(left) - len(workers),
        },
    )


def _kill_in(whole: Undisturbed, out: Path, stage: str, draw: random.Random) -> _Kill | None:
    """Run a build and kill it in a stage; None where it ended before."""
    before = runs.stages_done(out)
    units = draw.randint(0, max(0, whole.stages.get(stage, 0) - before.get(stage, 0) - 1))
    target = before.get(stage, 0) + units + 1
    delay = draw.uniform(0, {"start": 4.0, "plan": 0.6, "publish": 0.004}.get(stage, 0.03))
    alone = draw.random() < 0.5
    began = time.time()
    with (whole.scratch / "errors").open("wb") as errors:
        driver = runs.start(whole.command(out), errors)
        while not _is_there(out, stage, target):
            if driver.poll() is not None or time.time() - began > _LIMIT_S:
                driver.kill()
                driver.wait()
                return None
            time.sleep(_POLL_S)
        time.sleep(delay)
        family = runs.family(driver.pid)
        if driver.poll() is not None:
            return None
        runs.kill(driver.pid, *(() if alone else family))
        driver.wait()
    return _Kill(
        words=f"in {stage!r} after {target - 1} units, {'alone' if alone else 'with its workers'}",
        kept=runs.in_place(out),
        lost=runs.lost_units(out, began),
        family=family,
    )


def _is_there(out: Path, stage: str, target: int) -> bool:
    if stage == "start":
        return True
    if stage == "plan":
        return sum(1 for _ in out.glob("store/*/source.json")) == _SOURCES
    if stage == "publish":
        return (out / WORK / "publish").exists()
    return runs.stages_done(out)[stage] >= target
