"""Planning a corpus of a hundred million documents: time, memory and bytes, without its tokens.

Lengths are the paper's (`packer.lengths`), as one source's `lengths.u32`, which planning maps; what
is planned is written as a build writes it, plan parts and their inverses. Each policy runs in a
process of its own. `lookahead` plans a tenth, on one core; a build maps its windows over workers.

Predicted before measuring: `wlb` and `reorder` pack some 5 million documents a second and core, so
most of the time goes into mixing, sorting and writing: 2 microseconds a document, 200 s. Memory
is that of one plan part (a hundred thousand pieces) and of the stream's chunks: some 500 MB, the
same at a tenth of the documents. `lookahead`: 88,000 documents a second at N = 64.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from jobs.bench.processes import measure
from packer.lengths import fig3_lengths
from pipeline.config_file import parse_config
from pipeline.planning.chain import ChainEnd
from pipeline.planning.plan import write_plan
from pipeline.shard.token_store import StoreParts, TokenStore

DOCUMENTS = 100_000_000
POINTS = (
    ("reorder", DOCUMENTS // 10),
    ("reorder", DOCUMENTS),
    ("wlb", DOCUMENTS // 10),
    ("wlb", DOCUMENTS),
    ("lookahead", DOCUMENTS // 10),
)
CONTEXT_LENGTH, NUM_MICRO_BATCHES = 131_072, 64
_PART_DOCUMENTS = 100_000
_CHUNK = 1 << 20
_LIMIT_S = 3600.0


def run() -> list[dict[str, Any]]:
    """A row a policy and number of documents."""
    scratch = Path(tempfile.mkdtemp(prefix="steelyard-bench-"))
    try:
        write_lengths(scratch / "lengths.u32", DOCUMENTS)
        return [measure_plan(scratch, policy, documents) for policy, documents in POINTS]
    finally:
        shutil.rmtree(scratch)


def write_lengths(path: Path, documents: int) -> None:
    """The first documents of the distribution, in tokens; a pass over them may be any prefix."""
    with path.open("wb") as file:
        for seed, first in enumerate(range(0, documents, _CHUNK)):
            count = min(_CHUNK, documents - first)
            file.write(fig3_lengths(count, seed).astype("<u4").tobytes())


def measure_plan(scratch: Path, policy: str, documents: int) -> dict[str, Any]:
    """Plan in a process of its own."""
    out = scratch / "out"
    usage = measure(
        [sys.executable, "-m", "jobs.bench.growth", policy, str(documents), str(scratch)],
        directory=Path(__file__).parents[2],
        environment=os.environ,
        log=scratch / "log",
        limit_s=_LIMIT_S,
    )
    if usage.returncode:
        raise RuntimeError(f"{policy} failed: {(scratch / 'log').read_text()[-400:]}")
    row = json.loads((scratch / "log").read_text().splitlines()[-1])
    row |= {"seconds": usage.seconds, "cpu_seconds": usage.cpu_seconds}
    row |= {"documents_per_cpu_s": documents / usage.cpu_seconds}
    row |= {"peak_mib": usage.peak_bytes / 2**20, "mapped_files_mib": usage.mapped_bytes / 2**20}
    row |= {name: _bytes_below(out / name) / 2**20 for name in ("plan", "scratch")}
    shutil.rmtree(out)
    return row


def plan(policy: str, documents: int, scratch: Path) -> dict[str, Any]:
    """Plan the first documents of `scratch/lengths.u32` into `scratch/out`."""
    store = LengthsOnly(scratch / "lengths.u32", documents)
    out = scratch / "out"
    started = time.perf_counter()
    receipt = write_plan(out, out / "scratch", ChainEnd.start([store]), _config(policy))
    totals = receipt["totals"]
    return {
        "policy": policy,
        "documents": documents,
        "tokens": totals["stream_tokens"],
        "pieces": totals["stream_pieces"],
        "steps": totals["steps"],
        "parts": receipt["segment"]["parts"],
        "made_by": receipt["segment"]["policy"],
        "planning_seconds": time.perf_counter() - started,
    }


class LengthsOnly(TokenStore):
    """A token store whose documents have lengths and no tokens: all that planning looks at."""

    def __init__(self, path: Path, documents: int) -> None:
        self.directory, self.name = path.parent, "documents"
        self.documents = documents
        self.lengths = np.memmap(path, "<u4", mode="r", shape=(documents,))
        first = np.arange(0, documents, _PART_DOCUMENTS)
        # part by part: a sum over all of them in 64 bits would copy all of them to 64 bits first
        tokens = np.array(
            [
                self.lengths[start : start + _PART_DOCUMENTS].sum(dtype=np.int64)
                for start in first.tolist()
            ]
        )
        self.tokens = int(tokens.sum())
        zeros = np.zeros(len(first), np.int64)
        self.parts = StoreParts(
            first_doc_id=first,
            documents=np.diff(np.append(first, documents)),
            tokens=tokens,
            file=zeros,
            first_record=zeros,
            tokens_sha256=(),
            index_sha256=(),
            blocks_sha256=(),
        )


def _config(policy: str) -> Any:
    return parse_config(
        {
            "tokenizer": {"vocab_size": 200_000},
            "sources": [{"name": "documents", "paths": ["lengths.u32"], "format": "megatron"}],
            "packing": {
                "policy": policy,
                "num_micro_batches": NUM_MICRO_BATCHES,
                "context_length": CONTEXT_LENGTH,
            },
            "workload": {"crossover": 47_100},
            "parallel": {"dp_size": 8, "pp_size": 4},
        },
        name="growth",
    )


def _bytes_below(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())


if __name__ == "__main__":
    print(json.dumps(plan(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))))
