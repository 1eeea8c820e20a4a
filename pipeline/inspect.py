"""One micro-batch or document, laid open: what is in it, whence it comes, who computes it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from packer.orders import run_order, slot_of
from packer.workload import SCALE
from pipeline.built import config_of, workload_of
from pipeline.files.contents import parquet_source
from pipeline.inspect_cp import cp_figures
from pipeline.shard.manifest import Manifest, load_manifest
from pipeline.shard.reader import open_shards
from pipeline.shard.tables import NotInSet
from pipeline.shard.token_store import TokenStore
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
            str(cp_size): cp_figures(manifest, reader.chunks(step, slot, cp_size), tokens, cp_size)
            for cp_size in manifest.cp_sizes
        },
    }


def inspect_document(
    root: Path, *, source: str, doc_id: int, text: int = 0, pieces: bool = False
) -> dict[str, Any]:
    """One document: which record it was, what was kept of it, and where it runs.

    Args:
        root: the set's directory.
        source: its name.
        doc_id: which of its documents.
        text: decode the first so many characters; 0 for none.
        pieces: find its pieces too; reads the whole plan.

    Returns:
        `source`, `doc_id`, `path` (the input, as inputs.parquet has it), `record` (its number in
        that file), `tokens`, `metadata` (an object, or None where no columns are kept), and where
        asked for `text` and `pieces` (a dict each; `step` and `slot` are None for the tail of its
        `segment`, and what stands there may have run in a later one).

    Raises:
        NotInSet: no such source.
        StoreError: no such document, or a damaged store.
    """
    manifest = load_manifest(root)
    names = [entry.name for entry in manifest.sources]
    if source not in names:
        raise NotInSet(f"source {source!r} is not in this set; it has: {', '.join(names)}")
    number = names.index(source)
    store = TokenStore(manifest.store_path(number))
    path, record = store.origin_of(doc_id)
    ids = store.tokens_of(doc_id)
    figures: dict[str, Any] = {
        "source": source,
        "doc_id": doc_id,
        "path": path,
        "record": record,
        "tokens": len(ids),
        "metadata": store.metadata_of(doc_id),
    }
    if text:
        identity = resolve_tokenizer(config_of(manifest).tokenizer)
        figures["text"] = decode(identity, ids[: 4 * text])[:text]
    if pieces:
        figures["pieces"] = _pieces_of(manifest, number, doc_id)
    return figures


_PIECE = ("epoch", "doc_start", "doc_stop")


def _pieces_of(manifest: Manifest, source: int, doc_id: int) -> list[dict[str, Any]]:
    """A document's pieces by epoch and place in it, from every plan part and the tail."""
    found = []
    for part in range(manifest.num_parts):
        with pq.ParquetFile(parquet_source(manifest.plan_path(part))) as file:
            columns = ["step", "slot", "source", "doc_id", *_PIECE]
            for batch in file.iter_batches(columns=columns, use_threads=False):
                found += [
                    {
                        "segment": manifest.segments.index(manifest.segment_of(piece["step"])),
                        **piece,
                    }
                    for piece in _pieces_in(batch, source, doc_id)
                ]
    tail = pq.read_table(parquet_source(manifest.directory / "tail.parquet"))
    mine = (pc.field("source") == source) & (pc.field("doc_id") == doc_id)
    for row in tail.filter(mine).to_pylist():
        found.append(
            {"segment": row["segment"], "step": None, "slot": None}
            | {name: row[name] for name in _PIECE}
        )
    return sorted(found, key=lambda piece: (piece["epoch"], piece["doc_start"], piece["segment"]))


def _pieces_in(batch: pa.RecordBatch, source: int, doc_id: int) -> list[dict[str, Any]]:
    names = ("source", "doc_id", *_PIECE)
    lists = {name: batch.column(name).flatten().to_numpy() for name in names}
    row = np.repeat(np.arange(batch.num_rows), batch.column("doc_id").value_lengths().to_numpy())
    mine = np.flatnonzero((lists["source"] == source) & (lists["doc_id"] == doc_id))
    return [
        {
            "step": batch.column("step")[int(row[place])].as_py(),
            "slot": batch.column("slot")[int(row[place])].as_py(),
            **{name: int(lists[name][place]) for name in _PIECE},
        }
        for place in mine
    ]


def _runs_as(manifest: Manifest, step: int, slot: int) -> list[dict[str, int]]:
    """For every dp_size that divides N: which rank runs the slot, and in which turn."""
    count = manifest.segment_of(step).num_micro_batches
    places = []
    for dp_size in (size for size in range(1, count + 1) if count % size == 0):
        number = slot // dp_size
        rank = next(
            rank
            for rank in range(dp_size)
            if slot_of(micro_batch=number, dp_rank=rank, dp_size=dp_size) == slot
        )
        turn = run_order(manifest.micro_batch_order, count // dp_size).index(number)
        places.append({"dp_size": dp_size, "dp_rank": rank, "micro_batch": number, "turn": turn})
    return places
