"""What each stage of a build costs a token: CPU seconds, all in one process, kernels compiled.

Stages are made of units that a cluster shares out, so their CPU time over its cores is their price
there, as far as disks and networks keep up. `verify` is beside them.

Predicted before measuring: tokenizing 3M tokens a second with the fastest engine that is proven;
moving the tokens 20M (read, sorted in scratch, compressed); CP plans 100M, verify 10M.
"""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from jobs.bench.build import build_config
from jobs.bench.corpus import write_jsonl
from jobs.build import build
from jobs.progress import Reporter, Stage
from pipeline.config import JobSettings, RunConfig
from pipeline.shard.manifest import load_manifest
from pipeline.verify import verify

MEGABYTES = 110


def run() -> list[dict[str, Any]]:
    """A row a stage, in the order of a build."""
    with tempfile.TemporaryDirectory(prefix="steelyard-bench-") as name:
        return stages(Path(name), MEGABYTES)


def stages(scratch: Path, megabytes: float) -> list[dict[str, Any]]:
    """Build from so much text, after a small build that compiles."""
    _build(scratch / "warm", min(2, megabytes))
    clock, root = _build(scratch / "measured", megabytes)
    tokens = load_manifest(root).totals["tokens"]
    started = time.process_time()
    verify(root)
    clock.cpu_seconds["verify"] = time.process_time() - started
    return [
        {
            "stage": stage,
            "tokens": tokens,
            "cpu_seconds": seconds,
            "tokens_per_cpu_s": tokens / seconds,
        }
        for stage, seconds in clock.cpu_seconds.items()
    ]


def _build(scratch: Path, megabytes: float) -> tuple[StageClock, Path]:
    corpus = scratch / "corpus.jsonl"
    write_jsonl(corpus, megabytes=megabytes)
    clock = StageClock()
    build(_config(corpus), scratch / "out", clock)
    return clock, scratch / "out"


def _config(corpus: Path) -> RunConfig:
    config = build_config(corpus)
    tokenizer = config.tokenizer.model_copy(update={"engine": "auto"})
    return config.model_copy(update={"tokenizer": tokenizer, "job": JobSettings(executor="local")})


class StageClock(Reporter):
    """Keeps the CPU seconds of every stage, by name, and says nothing."""

    def __init__(self) -> None:
        super().__init__(quiet=True)
        self.cpu_seconds: dict[str, float] = {}

    @contextlib.contextmanager
    def stage(
        self, name: str, *, total: int | None, unit: str, before: str = ""
    ) -> Iterator[Stage]:
        started = time.process_time()
        with super().stage(name, total=total, unit=unit, before=before) as stage:
            yield stage
        self.cpu_seconds[name] = time.process_time() - started
