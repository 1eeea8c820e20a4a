"""A job that is killed over and over, and what it makes when nothing happens to it."""

from __future__ import annotations

import hashlib
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from jobs.chaos import runs
from jobs.chaos.corpus import write_corpus
from pipeline.publish import WORK

_POLL_S = 0.002
BUILD_STAGES = ("start", "ids", "token parts", "plan", "runs", "shards", "cp plans", "publish")
_SOURCES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A command that makes a set in a directory.

    Attributes:
        name: of the command.
        command: its arguments, for a directory.
        stages: in which it can be killed, in their order.
        stores: finished token stores in the directory when it plans; 0 where it plans nothing.
        given: the set that the directory holds before; None where it holds none.
        beside: a set that it reads and must leave as it is.
        goes_on: whether units that ended before a kill are kept; else it starts over.
    """

    name: str
    command: Callable[[Path], list[str]]
    stages: tuple[str, ...] = BUILD_STAGES
    stores: int = 0
    given: Path | None = None
    beside: Path | None = None
    goes_on: bool = True


def build_job(config: Path) -> Job:
    """A build of `write_corpus`."""

    def command(out: Path) -> list[str]:
        return ["build", "--config", str(config), "--out", str(out)]

    return Job(name="build", command=command, stores=_SOURCES)


class Undisturbed:
    """A job, and the set that it makes when it is left alone.

    Args:
        scratch: where its sets go.
        job: what is run.
    """

    def __init__(self, scratch: Path, job: Job) -> None:
        self.scratch = scratch
        self.job = job
        self.whole = self.new()
        self.given_stages = runs.stages_done(self.whole)
        """Units of work by stage that were there before."""
        self.stages: dict[str, int] = {}
        """Units of work by stage, as they were seen to come."""
        self._beside = runs.digests(job.beside) if job.beside else {}
        began = time.monotonic()
        with (scratch / "errors").open("wb") as errors:
            driver = runs.start(job.command(self.whole), errors)
            while driver.poll() is None:
                for stage, count in runs.stages_done(self.whole).items():
                    self.stages[stage] = max(count, self.stages.get(stage, 0))
                time.sleep(_POLL_S)
        if driver.returncode:
            raise RuntimeError(f"left alone, it failed: {(scratch / 'errors').read_text()}")
        self.seconds = time.monotonic() - began
        self.digests = runs.digests(self.whole)
        self.bytes = sum((self.whole / name).stat().st_size for name in self.digests)

    def new(self) -> Path:
        """A directory as the job finds it at first."""
        out = Path(tempfile.mkdtemp(prefix=f"{self.job.name}-", dir=self.scratch))
        if self.job.given:
            shutil.copytree(self.job.given, out, dirs_exist_ok=True)
        return out

    def has_ended(self, out: Path) -> bool:
        """Whether the job did all of its work there; an extension run again would add another."""
        manifest = out / "manifest.json"
        if (out / WORK / "ledger.jsonl").exists() or not manifest.exists():
            return False
        found = hashlib.sha256(manifest.read_bytes()).hexdigest()
        return found == self.digests["manifest.json"]

    def end(self, out: Path) -> str:
        """Run the job to its end: nothing where the set is the undisturbed one, else the fault."""
        if not (self.job.given and self.has_ended(out)):
            ended = runs.run(*self.job.command(out))
            if ended.status:
                return ended.line or ended.errors[-400:]
        if other := _differing(runs.digests(out), self.digests):
            return f"{len(other)} files have other bytes: {other[:3]}"
        if self.job.beside and (other := _differing(runs.digests(self.job.beside), self._beside)):
            return f"{len(other)} files of the set beside it have other bytes: {other[:3]}"
        return runs.run("verify", str(out), "--quiet").line


def undisturbed_build(scratch: Path, *, documents: int = 800, executor: str = "ray") -> Undisturbed:
    """A corpus and a build of it."""
    config = write_corpus(scratch / "corpus", documents=documents, executor=executor)
    return Undisturbed(scratch, build_job(config))


def _differing(found: dict[str, str], wanted: dict[str, str]) -> list[str]:
    names = sorted(found.keys() | wanted.keys())
    return [name for name in names if found.get(name) != wanted.get(name)]
