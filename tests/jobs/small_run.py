"""A corpus and a configuration small enough to build in a second, with every awkward case in it."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from pipeline.config import RunConfig, parse_config
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
            "context_parallel": {"sizes": [2, 4]},
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
