"""Damage larger than a bit: files cut short, gone, exchanged, of another set, of a newer format."""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from jobs.chaos.result import Case
from jobs.chaos.small_set import SmallSet

_KINDS = (
    "shards/00001.parquet",
    "plan/00001.parquet",
    "cp=2/00001.parquet",
    "steps.parquet",
    "tail.parquet",
    "files.parquet",
    "row_groups.parquet",
    "manifest.json",
    "manifest.sha256",
    "source.json",
    "parts.parquet",
    "lengths.u32",
    "inputs.parquet",
    "rejects.parquet",
    "00000.tokens",
    "00000.index.parquet",
    "00000.blocks.parquet",
)
_READ_BY_NOBODY = ("tail.parquet", "inputs.parquet", "rejects.parquet", "lengths.u32")


def damage(small: SmallSet, other: SmallSet) -> Iterator[Case]:
    """Every kind of damage to every kind of file, one at a time.

    Args:
        small: is damaged, and whole again afterwards.
        other: a set of another corpus, whose files are put in its place.
    """
    for path in _one_of_each(small):
        for length in _lengths(path):
            with kept(path):
                path.write_bytes(path.read_bytes()[:length])
                yield _judged(
                    small, "file cut short", f"{small.name(path)} to {length} bytes", path
                )
        with kept(path):
            path.unlink()
            yield _judged(small, "file missing", small.name(path), path)
    for name in ("shards/00000.parquet", "plan/00000.parquet", "cp=4/00000.parquet",
                 "steps.parquet", "files.parquet", "row_groups.parquet"):  # fmt: skip
        with kept(small.root / name):
            shutil.copy(other.root / name, small.root / name)
            yield _judged(small, "file of another set", name, small.root / name)
    with kept(small.root / "shards/00000.parquet"), kept(small.root / "shards/00001.parquet"):
        first, second = (small.root / f"shards/0000{number}.parquet" for number in (0, 1))
        content = first.read_bytes()
        shutil.copy(second, first)
        second.write_bytes(content)
        yield _judged(small, "two shards exchanged", small.name(first), first)
    manifest, digest = small.root / "manifest.json", small.root / "manifest.sha256"
    with kept(manifest), kept(digest):
        shutil.copy(other.root / "manifest.json", manifest)
        yield _judged(small, "manifest of another run", "manifest.json alone", manifest)
        shutil.copy(other.root / "manifest.sha256", digest)
        files = small.root / "files.parquet"
        yield _judged(small, "manifest of another run", "and its digest", files)
    with edited(small.root, lambda document: document.update(version=2)):
        yield _judged(small, "newer format", "version 2", manifest)


@contextlib.contextmanager
def kept(path: Path) -> Iterator[None]:
    """Whatever is done to a file meanwhile, afterwards it is what it was."""
    content = path.read_bytes()
    try:
        yield
    finally:
        path.write_bytes(content)


@contextlib.contextmanager
def edited(root: Path, change: Callable[[dict], object]) -> Iterator[None]:
    """A manifest with other fields for a while, and the digest that belongs to it."""
    manifest, digest = root / "manifest.json", root / "manifest.sha256"
    with kept(manifest), kept(digest):
        document = json.loads(manifest.read_bytes())
        change(document)
        content = json.dumps(document, indent=1, sort_keys=True).encode() + b"\n"
        manifest.write_bytes(content)
        digest.write_text(hashlib.sha256(content).hexdigest() + "\n")
        yield


def _one_of_each(small: SmallSet) -> Iterator[Path]:
    for kind in _KINDS:
        yield next(path for path in small.files if small.name(path).endswith(kind))


def _lengths(path: Path) -> list[int]:
    """Where a file is cut: nothing left, a first piece, half, without its last bytes."""
    size = len(path.read_bytes().rstrip(b"\n"))  # the digest's newline says nothing
    return sorted({0, min(4, size - 1), size // 2, max(0, size - 8), size - 1})


def _judged(small: SmallSet, fault: str, done: str, path: Path) -> Case:
    met = small.verified()
    reads = small.read()
    name = path.name if path.name.startswith("manifest") else small.name(path)
    named = name in met.line or (name.startswith("manifest") and "manifest" in met.line)
    missed = not reads and path.name not in _READ_BY_NOBODY
    bugs = [read.line for read in reads if read.status is None]
    return Case(
        fault=fault,
        done=done,
        held=met.status in (1, 2) and named and not missed and not bugs,
        seen=bugs[0] if bugs else "read as if nothing were wrong" if missed else met.line,
        figures={"refused by a reader": int(bool(reads))},
    )
