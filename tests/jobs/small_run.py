"""A corpus and a configuration small enough to build in a second, with every awkward case in it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jobs import build as build_module
from jobs.build import build
from jobs.executor import LocalExecutor
from jobs.progress import Reporter
from pipeline.config import RunConfig
from pipeline.config_file import parse_config
from tests.corpora import EOS, WORDS, tiny_tokenizer, write_jsonl, write_parquet, write_tree


def texts(seed: int, count: int) -> list[str]:
    """Heavy-tailed texts: most a few words, some many times the context length."""
    generator = np.random.default_rng(seed)
    lengths = np.minimum(generator.pareto(0.9, count) * 12 + 2, 2500).astype(int)
    return [" ".join(generator.choice(WORDS, length)) for length in lengths]


def small_config(directory: Path) -> RunConfig:
    """Write two sources in four formats below `directory` and configure a build of them."""
    directory.mkdir(parents=True, exist_ok=True)
    first = write_jsonl(directory / "first.jsonl", texts(0, 400))
    first.write_text(first.read_text() + "{broken\n")
    second = write_jsonl(directory / "second.jsonl.gz", texts(1, 100))
    third = write_parquet(directory / "third.parquet", [*texts(2, 300), "  "], rows_per_group=50)
    tree = write_tree(
        directory / "tree", {f"{number}.txt": text for number, text in enumerate(texts(3, 40))}
    )
    return parse_config(
        {
            "tokenizer": {"path": str(tiny_tokenizer()), "eos_token": EOS},
            "sources": [
                {"name": "lines", "paths": [str(first), str(second)]},
                {"name": "mixed", "paths": [str(third), str(tree)]},
            ],
            "packing": {
                "num_micro_batches": 4,
                "context_length": 512,
                "max_displacement": 8,
                "thresholds": [300],
            },
            "workload": {"crossover": 200},
            "context_parallel": {"sizes": [2, 4], "strategy": "per_document"},
            "parallel": {"dp_size": 2, "pp_size": 2},
            "shards": {
                "shard_tokens": 8192,
                "row_group_tokens": 1024,
                "split_bytes": 20_000,
                "run_tokens": 20_000,
            },
            "job": {"executor": "local"},
        },
        name="small run",
    )


QUIET = Reporter(quiet=True)


def digests(root: Path) -> dict[str, str]:
    """SHA-256 of every file of a set; its working state aside."""
    return {
        path.relative_to(root).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(root.rglob("*"))
        if path.is_file() and ".build" not in path.relative_to(root).parts
    }


class DyingExecutor(LocalExecutor):
    """Dies after so many tasks, in the middle of the next one's recording."""

    def __init__(self, tasks: int) -> None:
        super().__init__()
        self.left = tasks

    def map(self, function: Any, arguments: Sequence[tuple[Any, ...]]) -> Iterator[tuple[int, Any]]:
        for item in super().map(function, arguments):
            if not self.left:
                raise KeyboardInterrupt
            self.left -= 1
            yield item


def build_with(
    executor: Any, config: RunConfig, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(build_module, "open_executor", lambda _: nullcontext(executor))
        build(config, root, QUIET)
