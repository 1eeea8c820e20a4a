"""Our tokenize stage and build in a process: `python -m jobs.bench.peers.ours JOB REPORT`."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from jobs.build import build
from jobs.executor import open_executor
from jobs.progress import Reporter
from jobs.tokenizing import find_corpora, tokenize, with_engine
from jobs.workplace import Workplace
from pipeline.config import RunConfig
from pipeline.config_file import parse_config
from pipeline.tokenizer.resolve import resolve_tokenizer

_SPLITS = 16


def configuration(job: dict[str, Any]) -> dict[str, Any]:
    """The configuration of a build of a job's files, S = 32,768 and two CP degrees."""
    size = sum(Path(file).stat().st_size for file in job["files"])
    tokenizer = {"path": job["tokenizer"], "eos_token": job["eos_token"], "engine": job["engine"]}
    return {
        "tokenizer": tokenizer,
        "sources": [{"name": "text", "paths": job["files"]}],
        "packing": {"num_micro_batches": 4, "context_length": 32_768},
        "workload": {"crossover": 20_000},
        "context_parallel": {"sizes": [2, 4]},
        "shards": {"split_bytes": min(33_554_432, size // _SPLITS)},
        "job": {"workers": job["workers"], "object_store_mb": 100},
    }


def main(job: dict[str, Any], report: Path) -> None:
    """Run one of the two and write what it took, without what starting took."""
    config = parse_config(configuration(job), name="benchmark")
    out = Path(job["out"])
    run = _tokenize if job["what"] == "tokenize" else _build
    report.write_text(json.dumps(run(config, job, out)))


def _tokenize(config: RunConfig, job: dict[str, Any], out: Path) -> dict[str, Any]:
    del job
    marks = [time.perf_counter()]
    identity = resolve_tokenizer(config.tokenizer)
    marks.append(time.perf_counter())
    with open_executor(config.job) as executor:
        marks.append(time.perf_counter())
        corpora = find_corpora(config, identity, Workplace.of(out, config.job))
        identity = with_engine(corpora, config, identity, Reporter())
        marks.append(time.perf_counter())
        tokenize(corpora, identity, config, executor, Reporter())
        marks.append(time.perf_counter())
    names = ("load vocabulary", "start Ray", "digest inputs and prove the engine", "tokenize")
    steps = zip(names, marks[:-1], marks[1:], strict=True)
    return {
        "stage_seconds": marks[4] - marks[3],
        "stage": f"the stage with {identity.engine}; Ray runs and the engine is proven already",
        "parts": {name: after - before for name, before, after in steps},
    }


def _build(config: RunConfig, job: dict[str, Any], out: Path) -> dict[str, Any]:
    """The build once more, in a Ray whose workers have compiled: the corpus's first file before."""
    first = parse_config(configuration({**job, "files": job["files"][:1]}), name="benchmark")
    marks = [time.perf_counter()]
    with open_executor(config.job) as executor:
        del executor
        marks.append(time.perf_counter())
        build(first, out / "first", Reporter())
        marks.append(time.perf_counter())
        build(config, out / "whole", Reporter())
        marks.append(time.perf_counter())
    steps = zip(("start Ray", "first build", "build"), marks[:-1], marks[1:], strict=True)
    return {
        "stage_seconds": marks[3] - marks[2],
        "stage": "the whole build; Ray runs already and its workers have compiled",
        "parts": {name: after - before for name, before, after in steps},
    }


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2]))
