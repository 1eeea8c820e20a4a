"""One micro-batch, laid open: its pieces, and who computes what."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from packer.plan import slot_of
from packer.workload import SCALE
from pipeline.built import config_of, workload_of
from pipeline.shard.manifest import Manifest
from pipeline.shard.reader import Reader, open_shards
from pipeline.tokenizer.engine import decode
from pipeline.tokenizer.resolve import resolve_tokenizer


def inspect(root: Path, *, step: int, slot: int = 0, text: int = 0) -> dict[str, Any]:
    """One micro-batch's pieces and, for each planned CP degree, every rank's chunks.

    Args:
        root: the set's directory.
        step: which step.
        slot: which of its micro-batches.
        text: decode the first so many characters of each piece; 0 for none.

    Returns:
        `tokens`, `num_targets`, `workload` (linear-token equivalents), `runs_as` (for each dp_size
        the rank and micro-batch that run the slot), `pieces` (a dict each), `cp` (by degree: a
        dict a rank).

    Raises:
        FormatError: no such step or slot, or a damaged row group.
    """
    reader = open_shards(root)
    manifest = reader.manifest
    batch = reader.micro_batch(step, slot)
    workload = workload_of(manifest)
    tokens = np.diff(batch.cu_seqlens)
    names = [source.name for source in manifest.sources]
    pieces = [
        {
            "source": names[batch.source[i]],
            "epoch": int(batch.epoch[i]),
            "doc_id": int(batch.doc_id[i]),
            "doc_start": int(batch.doc_start[i]),
            "tokens": int(tokens[i]),
            "workload": float(workload.of(tokens[i : i + 1])[0] / SCALE),
            "last_label": int(batch.last_labels[i]),
        }
        for i in range(len(tokens))
    ]
    if text:
        identity = resolve_tokenizer(config_of(manifest).tokenizer)
        for i, piece in enumerate(pieces):
            ids = batch.tokens[batch.cu_seqlens[i] : batch.cu_seqlens[i + 1]]
            piece["text"] = decode(identity, ids[: 4 * text])[:text]
    return {
        "step": step,
        "slot": slot,
        "tokens": len(batch.tokens),
        "num_targets": int(batch.num_targets),
        "workload": float(batch.workload / SCALE),
        "runs_as": _runs_as(manifest, step, slot),
        "pieces": pieces,
        "cp": {
            str(cp_size): _cp_ranks(reader, step, slot, cp_size) for cp_size in manifest.cp_sizes
        },
    }


def _runs_as(manifest: Manifest, step: int, slot: int) -> list[dict[str, int]]:
    """For every dp_size that divides N: which rank runs the slot, as which micro-batch."""
    count = manifest.segment_of(step).num_micro_batches
    places = []
    for dp_size in (size for size in range(1, count + 1) if count % size == 0):
        number = slot // dp_size
        rank = next(
            rank
            for rank in range(dp_size)
            if slot_of(micro_batch=number, dp_rank=rank, dp_size=dp_size) == slot
        )
        places.append({"dp_size": dp_size, "dp_rank": rank, "micro_batch": number})
    return places


def _cp_ranks(reader: Reader, step: int, slot: int, cp_size: int) -> list[dict[str, Any]]:
    row = reader.chunks(step, slot, cp_size)
    ranks = []
    for rank in range(cp_size):
        mine = np.flatnonzero(row.cp_rank == rank)
        chunks = [
            {"piece": int(row.piece[i]), "start": int(row.start[i]), "stop": int(row.stop[i])}
            for i in mine
        ]
        ranks.append(
            {
                "cp_rank": rank,
                "tokens": sum(chunk["stop"] - chunk["start"] for chunk in chunks),
                "predicted": float(row.predicted[rank] / SCALE),
                "chunks": chunks,
            }
        )
    return ranks
