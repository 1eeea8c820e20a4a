"""Builds as processes of their own, their families, and what they leave on disk."""

from __future__ import annotations

import contextlib
import glob
import hashlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from pipeline.publish import WORK, staged_parts
from pipeline.state.ledger import entries_of, notes_of

ROOT = Path(__file__).parents[2]
_ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "NUMBA_DISABLE_JIT": "1",  # the same plans, and nothing to compile at every start
    "PYTHONWARNINGS": "ignore",  # of 64-bit integers that wrap, as they should
    "PYTHONPATH": str(ROOT),
}
_LIMIT_S = 300
_PIECES = {
    "ids": ("store/*/ids/*.ids", "ids/{}"),
    "token parts": ("store/*/parts/*.tokens", "{}"),
    "runs": (f"{WORK}/scratch-*/runs/*.offsets", "run/{}"),
    "shards": ("shards/*.parquet", "shard/{}"),
    "cp plans": ("cp=*/*.parquet", "{folder}/{}"),
}
"""By stage: where the file of a unit of work appears, and what the ledger calls the unit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a command ended, and what it said on stderr."""

    status: int
    errors: str

    @property
    def line(self) -> str:
        """The last line that the command itself said."""
        said = [line for line in self.errors.splitlines() if line.startswith("steelyard: ")]
        return said[-1] if said else ""

    @property
    def traceback(self) -> bool:
        return "Traceback (most recent call last)" in self.errors


def start(arguments: list[str], errors: IO[bytes]) -> subprocess.Popen[bytes]:
    """Start `steelyard` in a session of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "jobs", *arguments],
        stdout=subprocess.DEVNULL,
        stderr=errors,
        env={**os.environ, **_ENVIRONMENT},
        start_new_session=True,
    )


def run(*arguments: str, limit_bytes: int | None = None) -> Ended:
    """Run `steelyard` to its end; `limit_bytes` bounds every file that it writes."""

    def bound() -> None:
        if limit_bytes is not None:
            import resource

            resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, limit_bytes))

    ended = subprocess.run(
        [sys.executable, "-m", "jobs", *arguments],
        capture_output=True,
        env={**os.environ, **_ENVIRONMENT},
        timeout=_LIMIT_S,
        preexec_fn=bound,
    )
    return Ended(status=ended.returncode, errors=ended.stderr.decode(errors="replace"))


def family(pid: int) -> dict[int, tuple[int, str]]:
    """Parent and command line of every process below one."""
    parents: dict[int, tuple[int, str]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):  # it ended meanwhile
                stat = (entry / "stat").read_text()
                words = (
                    (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
                )
                parents[int(entry.name)] = (int(stat.rpartition(")")[2].split()[1]), words.strip())
    below, found = {pid}, dict[int, tuple[int, str]]()
    while more := {child for child, (parent, _) in parents.items() if parent in below} - below:
        below |= more
    for child in below - {pid}:
        found[child] = parents[child]
    return found


def kill(*pids: int) -> None:
    """Kill processes; one that ended meanwhile is passed over."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def busy_workers(pid: int) -> dict[int, str]:
    """Ray workers below a driver that run a task of ours now, and its function's name."""
    processes = family(pid).items()
    titles = {child: words.removeprefix("ray::") for child, (_, words) in processes
              if words.startswith("ray::")}  # fmt: skip
    # Ray's own are called IDLE, DashboardAgent and the like.
    return {child: title for child, title in titles.items() if title and not title[0].isupper()}


def digests(root: Path) -> dict[str, str]:
    """SHA-256 of every file of a set; its working state aside."""
    return {
        path.relative_to(root).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(root.rglob("*"))
        if path.is_file() and WORK not in path.relative_to(root).parts
    }


def stages_done(root: Path) -> dict[str, int]:
    """Units of work by stage whose files are in place."""
    return {stage: sum(1 for _ in _files(root, stage)) for stage in _PIECES}


def _files(root: Path, stage: str, prefix: str = "") -> Iterator[Path]:
    """Files of a stage's units under their own names, or with a prefix before these.

    Parts of a segment that joins a set wait for it, so they are looked for there too. `glob` passes
    over folders that a build removes meanwhile, as `Path.glob` does not.
    """
    folder, _, name = _PIECES[stage][0].rpartition("/")
    pattern = f"{folder}/{prefix}{name}{'.*.tmp' if prefix else ''}"
    for place in (root, staged_parts(root)):
        for path in map(place.joinpath, glob.iglob(pattern, root_dir=place)):
            if path.name.startswith(".") == bool(prefix):
                yield path


def receipts(root: Path) -> set[tuple[str, str]]:
    """Units that a ledger has, or a worker's note beside it, with the ledger's folder."""
    done: set[tuple[str, str]] = set()
    for path in [root / WORK / "ledger.jsonl", *root.glob("store/*/ledger.jsonl")]:
        for file in [path, *notes_of(path).glob("[!.]*.json")]:
            if file.exists():
                for entry in entries_of(file.read_bytes()):
                    place = (path.parent.as_posix(), entry["unit"])
                    (done.discard if entry["receipt"] is None else done.add)(place)
    return done


def in_place(root: Path) -> dict[Path, tuple[int, int]]:
    """Inode and time of every file that a receipt or a finished store speaks of.

    A part that waits to be published has the name that it will have, since it moves meanwhile.
    """
    done, found = receipts(root), dict[Path, tuple[int, int]]()
    for stage in ("token parts", "shards", "cp plans"):
        for path in _files(root, stage):
            unit = _unit(root, stage, path)
            if unit in done or _is_finished(root, path, unit[0]):
                status, waits = path.stat(), path.is_relative_to(staged_parts(root))
                name = root / path.relative_to(staged_parts(root)) if waits else path
                found[name] = (status.st_ino, status.st_mtime_ns)
    return found


def lost_units(root: Path, since: float) -> list[str]:
    """Units that a dead run began or even wrote, and that no ledger has: work to be redone.

    Args:
        root: the set's directory.
        since: when the run began, as files' times have it.
    """
    done = receipts(root)
    lost = set[tuple[str, str]]()
    for stage in _PIECES:
        for path in [*_files(root, stage), *_files(root, stage, ".")]:
            unit = _unit(root, stage, path)
            is_done = unit in done or _is_finished(root, path, unit[0])
            if path.stat().st_mtime >= since and not is_done:
                lost.add(unit)
    return sorted(unit for _, unit in lost)


def _is_finished(root: Path, path: Path, place: str) -> bool:
    """Whether a file's token store or set has been published and needs no ledger any more.

    Args:
        root: of the set.
        path: of the file.
        place: where its ledger is, or was.
    """
    if path.is_relative_to(staged_parts(root)):
        return False
    return any((Path(place) / name).exists() for name in ("source.json", "../manifest.json"))


def _unit(root: Path, stage: str, path: Path) -> tuple[str, str]:
    number = re.sub(r"\D", "", path.name.lstrip(".").partition(".")[0])
    in_store = stage in ("ids", "token parts")
    name = number if in_store else str(int(number))
    ledger = path.parents[1] if in_store else root / WORK
    return ledger.as_posix(), _PIECES[stage][1].format(name, folder=path.parent.name)
