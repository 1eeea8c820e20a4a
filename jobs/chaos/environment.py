"""Faults around a build: a full disk, a directory that cannot be written, inputs that move."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from jobs.chaos import runs
from jobs.chaos.result import Case
from jobs.chaos.undisturbed import Undisturbed, undisturbed_build
from pipeline.publish import WORK

_LAST_SOURCE = "ids"
_POLL_S = 0.002
_LIMIT_S = 120


def faults(scratch: Path) -> Iterator[Case]:
    """Every fault to a build in one process, and the same command once it is over."""
    whole = undisturbed_build(scratch, documents=200, executor="local")
    yield from _limited_files(whole)
    yield from _full_disk(whole)
    yield _read_only(whole)
    lines, rows = (scratch / "corpus" / name for name in ("lines.jsonl", "rows.parquet"))
    yield _moving(whole, "input deleted", rows, Path.unlink)
    yield _moving(whole, "input changed", lines, lambda path: path.write_bytes(b"{}\n"))
    yield _moving(whole, "input cut short", rows, lambda path: os.truncate(path, 1000))


def _limited_files(whole: Undisturbed) -> Iterator[Case]:
    """Files that may not grow: what a quota does; from small ones to the largest."""
    for limit in (300, 4096, 60_000):
        out = whole.new()
        ended = runs.run(*whole.job.command(out), limit_bytes=limit)
        yield _judged(whole, out, f"files of at most {limit} bytes", ended)


def _full_disk(whole: Undisturbed) -> Iterator[Case]:
    """A file system that is full; only root can mount one, so others skip this."""
    for kilobytes in (200, 1000):
        out = Path(tempfile.mkdtemp(prefix="disk-", dir=whole.scratch))
        size = f"size={kilobytes}k"
        mount = ["mount", "-t", "tmpfs", "-o", size, "tmpfs", str(out)]
        if subprocess.run(mount, capture_output=True).returncode:
            out.rmdir()
            return
        try:
            ended = runs.run(*whole.job.command(out))
            larger = ["mount", "-o", "remount,size=200m", str(out)]
            subprocess.run(larger, check=True, capture_output=True)
            yield _judged(whole, out, f"disk full, {kilobytes} kB", ended, remove=False)
        finally:
            subprocess.run(["umount", str(out)], check=True, capture_output=True)
        out.rmdir()


def _read_only(whole: Undisturbed) -> Case:
    """A directory that cannot be written to: a file stands where it should be."""
    out = whole.new()
    out.rmdir()
    out.write_bytes(b"")
    ended = runs.run(*whole.job.command(out))
    out.unlink()
    out.mkdir()
    return _judged(whole, out, "target is no directory", ended)


def _moving(whole: Undisturbed, fault: str, path: Path, change: Callable[[Path], object]) -> Case:
    """Change an input once all have been listed and digested; put it back afterwards."""
    out = whole.new()
    with _put_back(path), (whole.scratch / "errors").open("wb") as errors:
        build = runs.start(whole.job.command(out), errors)
        began = time.monotonic()
        while build.poll() is None and not (out / WORK / f"inputs-{_LAST_SOURCE}.json").exists():
            if time.monotonic() - began > _LIMIT_S:
                runs.kill(build.pid)
            time.sleep(_POLL_S)
        change(path)
        status = build.wait()
    said = (whole.scratch / "errors").read_text(errors="replace")
    return _judged(whole, out, fault, runs.Ended(status=status, errors=said))


@contextmanager
def _put_back(path: Path) -> Iterator[None]:
    """A file is what it was afterwards, its times too."""
    copy = path.with_suffix(".copy")
    shutil.copy2(path, copy)
    try:
        yield
    finally:
        os.replace(copy, path)


def _judged(
    whole: Undisturbed, out: Path, fault: str, ended: runs.Ended, *, remove: bool = True
) -> Case:
    """One clear line, no set left behind, and the same command then makes the whole one."""
    clear = ended.status == 2 and bool(ended.line) and not ended.traceback
    unfinished = not (out / "manifest.json").exists()
    wrong = whole.end(out)
    if remove:
        shutil.rmtree(out)
    return Case(
        fault=fault,
        done="",
        held=clear and unfinished and not wrong,
        seen=wrong or ended.line or f"status {ended.status}: {ended.errors[-400:]}",
    )
