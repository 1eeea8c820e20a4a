"""Flipped bits, one at a time: `verify` finds every one, and no reader gives a wrong token."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from pathlib import Path

from jobs.chaos.result import Case
from jobs.chaos.small_set import SmallSet

_MANIFEST = ("manifest.json", "manifest.sha256")


@contextlib.contextmanager
def flipped(path: Path, byte: int, bit: int) -> Iterator[None]:
    """One bit of a file is another one for a while."""
    with path.open("rb+") as file:
        file.seek(byte)
        (old,) = file.read(1)
        file.seek(byte)
        file.write(bytes([old ^ 1 << bit]))
    try:
        yield
    finally:
        with path.open("rb+") as file:
            file.seek(byte)
            file.write(bytes([old]))


def flip_bits(small: SmallSet, flips: int, seed: int) -> Iterator[Case]:
    """Flip a bit in every file, then more of them, a file as often as it is large."""
    draw = random.Random(seed)
    files = [path for path in small.files if path.stat().st_size]
    sizes = [path.stat().st_size for path in files]
    for path in [*files, *draw.choices(files, sizes, k=max(0, flips - len(files)))]:
        byte, bit = draw.randrange(path.stat().st_size), draw.randrange(8)
        yield flip_one(small, path, byte, bit)
    met = small.verified()
    yield Case(fault="bit flipped", done="all flipped back", held=met.status == 0, seen=met.line)


def flip_one(small: SmallSet, path: Path, byte: int, bit: int) -> Case:
    """Flip one bit, verify the set, read all of it, and flip the bit back."""
    name = small.name(path)
    with flipped(path, byte, bit):
        met = small.verified()
        reads = small.read()
    # the manifest and its digest vouch for one another: either may be the damaged one
    found = met.status == 1 and (name in met.line or (name in _MANIFEST and "manifest" in met.line))
    typed = all(read.status == 2 for read in reads)
    wrong = [read.line for read in reads if read.status is None]
    # Parquet's first four bytes are in no row group, and nothing follows from them
    must_refuse = name.startswith(("shards/", "plan/", "cp=")) and byte >= 4
    must_refuse |= name.endswith(".tokens") or name in _MANIFEST
    return Case(
        fault="bit flipped",
        done=f"{name}, byte {byte}, bit {bit}",
        held=found and typed and (bool(reads) or not must_refuse),
        seen=wrong[0] if wrong else met.line or "verify found nothing",
        figures={"refused by a reader": int(bool(reads))},
    )
