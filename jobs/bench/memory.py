"""Peak memory of the whole job: driver, workers, Ray and its object store, at 1x and 10x corpus.

Memory is the proportional set size of the job's process tree, sampled ten times a second: private
and shared-memory pages apart from pages of mapped files, which the system takes back when it needs
them.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil

from jobs.bench.build import build_config
from jobs.bench.corpus import write_jsonl

SIZES_MB = (20, 200)
_EVERY_S = 0.1


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
    config = build_config(corpus, split_bytes=2_097_152).model_dump(mode="json", by_alias=True)
    note = scratch / f"{megabytes}.json"
    note.write_text(json.dumps(config))
    started = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "jobs.bench.memory", str(note), str(scratch / f"out-{megabytes}")]
    )
    private = mapped = 0
    while process.poll() is None:
        now = _tree(process.pid)
        private, mapped = max(private, now[0]), max(mapped, now[1])
        time.sleep(_EVERY_S)
    if process.returncode:
        raise RuntimeError(f"the build of {megabytes} MB failed with {process.returncode}")
    return {
        "text_mb": size / 1e6,
        "peak_mib": private / 2**20,
        "mapped_files_mib": mapped / 2**20,
        "seconds": time.perf_counter() - started,
    }


def _tree(pid: int) -> tuple[int, int]:
    """Bytes of private and shared memory, and of mapped files, of a process and all below it."""
    private = mapped = 0
    try:
        root = psutil.Process(pid)
        processes = [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return 0, 0
    for process in processes:
        try:
            text = Path(f"/proc/{process.pid}/smaps_rollup").read_text()
        except OSError:
            continue  # it ended in the meantime
        sizes = {
            words[0]: int(words[1]) * 1024
            for words in (line.split() for line in text.splitlines()[1:])
            if words
        }
        private += sizes.get("Pss_Anon:", 0) + sizes.get("Pss_Shmem:", 0)
        mapped += sizes.get("Pss_File:", 0)
    return private, mapped


def _child(config: Path, out: Path) -> None:
    from jobs.build import build
    from jobs.progress import Reporter
    from pipeline.config import parse_config

    build(parse_config(json.loads(config.read_text()), name=str(config)), out, Reporter(quiet=True))


if __name__ == "__main__":
    _child(Path(sys.argv[1]), Path(sys.argv[2]))
