"""How fast `lookahead` plans the paper's document lengths, on one worker and on several."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from itertools import islice
from typing import Any

from jobs.executor import open_executor
from jobs.progress import Reporter
from jobs.searching import searching
from packer.lengths import fig3_lengths
from packer.packing.config import PackingConfig
from packer.packing.packer import Packer, Search
from packer.plan import Pieces
from packer.schedule import Schedule
from packer.workload import Workload
from pipeline.config import JobSettings

CONTEXT_LENGTH = 131_072
CHUNK_PIECES = 1 << 17
"""The stream comes in chunks of this many pieces, as in a build."""
DOCUMENTS = 600_000
NUM_MICRO_BATCHES = 16
WORKLOAD = Workload(crossover=47_100)
CONFIG = PackingConfig(
    num_micro_batches=NUM_MICRO_BATCHES,
    context_length=CONTEXT_LENGTH,
    max_tokens=CONTEXT_LENGTH * 5 // 4,
    schedule=Schedule(dp_size=4, pp_size=4),
)


def run() -> list[dict[str, Any]]:
    """A row a number of workers: seconds of the first windows, then documents a second.

    In the first windows, as many as are in flight at once, the workers start and compile. One
    worker is the driver itself; with more, what the driver does for a window bounds how many it can
    keep busy, so the row has its documents a CPU second too.
    """
    return [_row(workers) for workers in sorted({1, 2, os.cpu_count() or 1})]


def _row(workers: int) -> dict[str, Any]:
    with _search(workers) as search:
        packer = Packer("lookahead", CONFIG, WORKLOAD, search=search)
        started = time.perf_counter()
        made = packer.steps_of(_chunks())
        first = list(islice(made, 2 * workers))
        compiled, busy = time.perf_counter(), time.process_time()
        documents = sum(len(steps.pieces) for steps in made)
        seconds, busy = time.perf_counter() - compiled, time.process_time() - busy
    return {
        "workers": workers,
        "num_micro_batches": NUM_MICRO_BATCHES,
        "windows_first": len(first),
        "seconds_first": compiled - started,
        "documents": documents,
        "documents_per_s": documents / seconds,
        "documents_per_driver_cpu_s": documents / busy,
    }


@contextlib.contextmanager
def _search(workers: int) -> Iterator[Search]:
    settings = JobSettings(executor="local" if workers == 1 else "ray", workers=workers)
    with (
        open_executor(settings) as executor,
        Reporter(quiet=True).stage("plan", total=None, unit="windows") as stage,
    ):
        yield searching(executor, stage)


def _chunks() -> Iterator[Pieces]:
    pieces = Pieces.from_lengths(fig3_lengths(DOCUMENTS, seed=0))
    for start in range(0, len(pieces), CHUNK_PIECES):
        yield pieces.take(slice(start, start + CHUNK_PIECES))
