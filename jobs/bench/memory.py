"""Peak memory of the whole job: driver, workers, Ray and its object store, at 1x and 10x corpus.

Splits, runs and shards are small, so that both corpora keep every worker busy with whole units in
every stage: what is compared is the size of the corpus, not whether two units ran at a time.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from jobs.bench.build import build_config
from jobs.bench.corpus import write_jsonl
from jobs.bench.processes import measure

SIZES_MB = (30, 300)
_UNIT_TOKENS = 1_048_576
_LIMIT_S = 1800.0


def run() -> list[dict[str, Any]]:
    """A row a corpus size."""
    scratch = Path(tempfile.mkdtemp(prefix="steelyard-bench-"))
    try:
        return [_measure(scratch, size) for size in SIZES_MB]
    finally:
        shutil.rmtree(scratch)


def _measure(scratch: Path, megabytes: int) -> dict[str, Any]:
    corpus = scratch / f"{megabytes}.jsonl"
    size = write_jsonl(corpus, megabytes=megabytes)
    config = build_config(corpus, split_bytes=2_097_152, unit_tokens=_UNIT_TOKENS)
    note = scratch / f"{megabytes}.json"
    note.write_text(json.dumps(config.model_dump(mode="json", by_alias=True)))
    usage = measure(
        [sys.executable, "-m", "jobs.bench.memory", str(note), str(scratch / f"out-{megabytes}")],
        directory=scratch,
        environment=os.environ,
        log=scratch / f"{megabytes}.log",
        limit_s=_LIMIT_S,
    )
    if usage.returncode:
        raise RuntimeError(f"the build of {megabytes} MB failed with {usage.returncode}")
    return {
        "text_mb": size / 1e6,
        "peak_mib": usage.peak_bytes / 2**20,
        "mapped_files_mib": usage.mapped_bytes / 2**20,
        "seconds": usage.seconds,
    }


def _child(config: Path, out: Path) -> None:
    from jobs.build import build
    from jobs.progress import Reporter
    from pipeline.config_file import parse_config

    build(parse_config(json.loads(config.read_text()), name=str(config)), out, Reporter(quiet=True))


if __name__ == "__main__":
    _child(Path(sys.argv[1]), Path(sys.argv[2]))
