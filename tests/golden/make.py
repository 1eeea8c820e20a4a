"""Makes `tests/golden/v1`, the set that every later reader must read.

`python -m tests.golden.make` is run once a format version; a set that is there is never made again.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from jobs.build import build
from jobs.progress import Reporter
from pipeline.config_file import parse_config
from tests.corpora import EOS, some_texts, tiny_tokenizer, write_jsonl, write_parquet

GOLDEN = Path(__file__).parent / "v1"


def make(root: Path) -> None:
    """Build the golden set in `root`, from relative paths, so that it names no machine's."""
    with tempfile.TemporaryDirectory() as scratch:
        os.chdir(scratch)
        Path("tiny").mkdir()
        shutil.copy(tiny_tokenizer(), "tiny/tokenizer.json")
        write_jsonl(Path("lines.jsonl"), some_texts(40, seed=1, longest=120))
        write_parquet(Path("rows.parquet"), some_texts(25, seed=2, longest=120))
        config = parse_config(
            {
                "tokenizer": {"path": "tiny/tokenizer.json", "eos_token": EOS},
                "sources": [
                    {"name": "lines", "paths": ["lines.jsonl"], "max_epochs": 2, "weight": 2.0},
                    {"name": "rows", "paths": ["rows.parquet"], "max_epochs": 2, "weight": 1.0},
                ],
                "packing": {"num_micro_batches": 4, "context_length": 64, "thresholds": [48]},
                "workload": {"crossover": 40},
                "context_parallel": {"sizes": [2, 3]},
                "shards": {"shard_tokens": 1024, "row_group_tokens": 256, "split_bytes": 4096},
                "job": {"executor": "local"},
            },
            name="golden",
        )
        build(config, root, Reporter(quiet=True))
    for work in (root / ".build", root / "store" / ".build"):
        shutil.rmtree(work)


if __name__ == "__main__":
    make(GOLDEN)
