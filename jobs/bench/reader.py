"""Reading packed micro-batches, one process: our shards and plans beside other ways, equal work.

All give the same micro-batches with labels, positions and boundaries (`reader_runs.py` says how,
and proves it by a digest), from files in the page cache. Each way runs in a process of its own; the
least CPU time of four passes counts, and beside it the least time by the clock. Rates are tokens
per CPU second.

Predicted before measuring, from the speed of parts: zstd gives 300M ids/s, XXH3 several thousand,
labels and positions are made at some 1,000M. So shards 120M to 200M; raw mmap 800M to 1,200M at S
of 131,072 and half of that at 8,192, where calls count; plan + token store half the mmap at
131,072, a third at 8,192 (a call a piece); Megatron like the plan; Streaming, whose samples are not
compressed and not checked, near the mmap. Reading ahead costs no CPU worth mentioning.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from jobs.bench.peers.environments import NotInstalledError, unpack
from jobs.bench.reader_corpus import Layouts, make, remove
from jobs.bench.reader_runs import WAYS

TOKENS = 100_000_000
SETS = ((131_072, 151_936), (8_192, 50_257))
"""Context length and vocabulary: ids of 32 and of 16 bits."""
PACKAGES = {
    "Megatron IndexedDataset": ("megatron-core==0.16.1",),
    "MosaicML LocalDataset": (
        "mosaicml-streaming==0.13.0", "catalogue==2.0.10", "Brotli==1.2.1", "zstd==1.5.7.2",
        "python-snappy==0.7.3", "cramjam==2.14.0",
    ),
}  # fmt: skip
"""What a way needs beside the project with its extra `train`; without their own dependencies."""
CHECKS = {"shards": "XXH3", "shards, read ahead": "XXH3", "plan + token store": "XXH3, once"}
_LIMIT_S = 600.0
Row = dict[str, Any]


def run() -> list[Row]:
    """Rows: every way of reading, of each set."""
    rows = []
    with tempfile.TemporaryDirectory(prefix="steelyard-bench-") as name:
        scratch = Path(name)
        for context_length, vocabulary in SETS:
            layouts = make(
                scratch / str(context_length),
                tokens=TOKENS,
                context_length=context_length,
                vocabulary=vocabulary,
            )
            mine = [_row(way, layouts, scratch) for way in WAYS]
            remove(layouts)
            rows += compare(mine)
    return rows


def compare(rows: list[Row]) -> list[Row]:
    """The rows of one set, each with whether it read what the shards gave, and the mmap's share."""
    by_way = {row["way"]: row for row in rows}
    digest, mapped = by_way["shards"].get("digest"), by_way["raw mmap"].get("tokens_per_cpu_s")
    for row in rows:
        done = row["failed"] is None
        row["same"] = row["digest"] == digest if done else None
        row["of_mmap"] = row["tokens_per_cpu_s"] / mapped if done and mapped else None
    return rows


def _row(way: str, layouts: Layouts, scratch: Path) -> Row:
    packages = PACKAGES.get(way, ())
    row: Row = {
        "way": way,
        "package": packages[0] if packages else None,
        "checks": CHECKS.get(way, "nothing"),
        "context_length": layouts.context_length,
        "dtype": layouts.dtype,
        "failed": None,
    }
    try:
        paths = [str(unpack(package, scratch)) for package in packages]
        row |= _measure(way, layouts.root, paths)
    except (NotInstalledError, RuntimeError) as error:
        return row | {"failed": str(error)}
    return row | {
        "tokens_per_cpu_s": row["tokens"] / row["cpu_seconds"],
        "tokens_per_s": row["tokens"] / row["seconds"],
    }


def _measure(way: str, root: Path, paths: list[str]) -> Row:
    path = os.pathsep.join([str(Path(__file__).parents[2]), *paths])
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "jobs.bench.reader_runs", way, str(root)],
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=_LIMIT_S,
    )
    if done.returncode:
        said = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        raise RuntimeError(f"failed: {said[-1][-200:] if said else 'no reason given'}")
    return json.loads(done.stdout.splitlines()[-1])
