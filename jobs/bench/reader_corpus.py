"""What the reading benchmark reads: made-up documents, packed, and the same in other layouts."""

from __future__ import annotations

import shutil
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from jobs.build import build
from jobs.progress import Reporter
from packer.lengths import fig3_lengths, uniforms
from pipeline.config_file import parse_config
from pipeline.shard.reader import Reader, open_plan

_STEP_TOKENS = 1 << 20
_BLOCK = 1 << 22
_CODES = {"uint16": 8, "int32": 4}


@dataclass(frozen=True, slots=True, kw_only=True)
class Layouts:
    """Where one stream of tokens lies, each below `root`.

    `set/` is a built set with its token store, `documents.bin` and `.idx` a Megatron dataset of the
    same documents. `flat/` has the micro-batches back to back in the order of `order`, and beside
    them all that makes micro-batches of them; `pieces.npz` says where the pieces are from.
    """

    root: Path
    context_length: int
    dtype: str
    tokens: int


def make(root: Path, *, tokens: int, context_length: int, vocabulary: int) -> Layouts:
    """Documents of the paper's lengths, at most a context long, with ids as words are frequent.

    Ids are log-uniform, which is Zipf's law: the share of an id falls with its rank. Text has more
    order than that, so its ids compress better and decode faster.
    """
    root.mkdir(parents=True)
    lengths = np.minimum(fig3_lengths(tokens // 1000, 0), context_length)
    lengths = lengths[: np.searchsorted(np.cumsum(lengths), tokens)]
    stored = "uint16" if vocabulary <= 1 << 16 else "int32"
    prefix = root / "documents"
    _write_documents(prefix, lengths, vocabulary, np.dtype(stored))
    config = {
        "tokenizer": {"vocab_size": vocabulary},
        "sources": [{"name": "made", "paths": [str(prefix)], "format": "megatron"}],
        "packing": {
            "policy": "reorder",
            "num_micro_batches": _STEP_TOKENS // context_length,
            "context_length": context_length,
        },
        "workload": {"crossover": 47_100},
        "job": {"object_store_mb": 200},
    }
    build(parse_config(config, name="benchmark"), root / "set", Reporter(quiet=True))
    reader = open_plan(root / "set")
    return Layouts(
        root=root,
        context_length=context_length,
        dtype=reader.manifest.dtype,
        tokens=_write_flat(reader, root / "flat"),
    )


def order(reader: Reader) -> list[tuple[int, int]]:
    """Step and slot of every micro-batch, as the only data-parallel rank runs them."""
    return [
        (view.step, view.slot)
        for step in range(reader.num_steps)
        for view in reader.micro_batches(step, dp_rank=0, dp_size=1)
    ]


def remove(layouts: Layouts) -> None:
    """Delete all of it."""
    shutil.rmtree(layouts.root)


def _write_documents(prefix: Path, lengths: np.ndarray, vocabulary: int, dtype: np.dtype) -> None:
    total = int(lengths.sum())
    with open(f"{prefix}.bin", "wb") as file:
        for start in range(0, total, _BLOCK):
            numbers = np.arange(start, min(total, start + _BLOCK), dtype=np.uint64)
            ids = np.exp(uniforms(0, numbers) * np.log(vocabulary)).astype(dtype) - dtype.type(1)
            file.write(ids.data)
    pointers = (np.cumsum(lengths) - lengths) * dtype.itemsize
    with open(f"{prefix}.idx", "wb") as file:
        head = struct.pack("<QBQQ", 1, _CODES[dtype.name], len(lengths), len(lengths) + 1)
        file.write(b"MMIDIDX\0\0" + head)
        file.write(lengths.astype("<i4").data)
        file.write(pointers.astype("<i8").data)
        file.write(np.arange(len(lengths) + 1, dtype="<i8").data)


def _write_flat(reader: Reader, root: Path) -> int:
    """Micro-batches in `root`, and `pieces.npz` beside it; the number of tokens."""
    root.mkdir()
    columns = ("cu_seqlens", "last_labels", "doc_id", "doc_start")
    found: dict[str, list[np.ndarray]] = {name: [] for name in columns}
    places = order(reader)
    total = 0
    with (root / "tokens.bin").open("wb") as file:
        for step, slot in places:
            batch = reader.micro_batch(step, slot)
            file.write(batch.tokens.data)
            total += len(batch.tokens)
            for name in columns:
                found[name].append(getattr(batch, name))
    pieces = np.array([len(labels) for labels in found["last_labels"]])
    arrays: dict[str, Any] = {name: np.concatenate(found[name]) for name in columns}
    arrays["places"] = np.array(places)
    arrays["offsets"] = np.concatenate([[0], np.cumsum(pieces)])
    arrays["tokens"] = np.array([cu_seqlens[-1] for cu_seqlens in found["cu_seqlens"]])
    np.savez(root.parent / "pieces.npz", **arrays)
    return total
