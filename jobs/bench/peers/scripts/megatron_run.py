"""Megatron Core's indexed dataset, fed by Hugging Face `tokenizers` in several processes.

Megatron-LM's own tools/preprocess_data.py is in no package; what it calls to write is used here,
and texts are encoded in batches where it takes one at a time.
"""

# pyright: reportMissingImports=false
import json
import sys
import time
from collections.abc import Iterator
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import torch
from megatron.core.datasets.indexed_dataset import IndexedDatasetBuilder
from tokenizers import Tokenizer

_BATCH = 512


def main(job: dict, report: Path) -> None:
    """Every process writes a part; the parts are then joined, as preprocess_data.py does."""
    out, workers = Path(job["out"]), job["workers"]
    started = time.perf_counter()
    shares = [
        (job, job["files"][number::workers], out / f"part-{number}") for number in range(workers)
    ]
    with get_context("fork").Pool(workers) as pool:
        pool.starmap(_part, shares, chunksize=1)
    parts_done = time.perf_counter()
    whole = IndexedDatasetBuilder(str(out / "whole.bin"), dtype=np.int32)
    for _, _, prefix in shares:
        whole.add_index(str(prefix))
        prefix.with_suffix(".bin").unlink()
        prefix.with_suffix(".idx").unlink()
    whole.finalize(str(out / "whole.idx"))
    ended = time.perf_counter()
    report.write_text(
        json.dumps(
            {
                "stage_seconds": ended - started,
                "stage": "start of the processes, encoding and joining, by the clock",
                "parts": {"parts": parts_done - started, "join": ended - parts_done},
            }
        )
    )


def _part(job: dict, files: list[str], prefix: Path) -> None:
    tokenizer = Tokenizer.from_file(job["tokenizer"])
    builder = IndexedDatasetBuilder(str(prefix.with_suffix(".bin")), dtype=np.int32)
    for texts in _batches(files):
        for encoding in tokenizer.encode_batch_fast(texts, add_special_tokens=False):
            ids = [*encoding.ids, job["eos_id"]]
            builder.add_document(torch.IntTensor(ids), [len(ids)])
    builder.finalize(str(prefix.with_suffix(".idx")))


def _batches(files: list[str]) -> Iterator[list[str]]:
    texts: list[str] = []
    for path in files:
        with open(path, encoding="utf-8") as lines:
            for line in lines:
                texts.append(json.loads(line)["text"])
                if len(texts) == _BATCH:
                    yield texts
                    texts = []
    if texts:
        yield texts


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2]))
