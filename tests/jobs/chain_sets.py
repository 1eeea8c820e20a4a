"""What tests of chains know of a set: what runs in it, and what changes when it grows."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

from pipeline.config import RunConfig
from pipeline.planning.plan_parts import read_plan_part
from pipeline.shard.manifest import Manifest
from pipeline.shard.reader import open_shards

TABLES = {
    "manifest.json", "manifest.sha256", "files.parquet", "row_groups.parquet", "steps.parquet",
    "tail.parquet",
}  # fmt: skip
BEFORE = 20
"""Steps of the first segment."""


def changed(config: RunConfig, **tables: dict[str, Any]) -> RunConfig:
    return config.model_copy(
        update={
            name: getattr(config, name).model_copy(update=fields) for name, fields in tables.items()
        }
    )


def rows_of(manifest: Manifest) -> dict[tuple[int, int, int], list[tuple[int, int, int]]]:
    """Of each source, epoch and document that runs: start, stop and segment of its pieces."""
    found = defaultdict(list)
    for number, segment in enumerate(manifest.segments):
        for part in segment.part_numbers:
            pieces = read_plan_part(manifest.plan_path(part)).pieces
            for source, epoch, doc_id, start, stop in zip(
                pieces.source.tolist(), pieces.epoch.tolist(), pieces.doc_id.tolist(),
                pieces.doc_start.tolist(), pieces.doc_stop.tolist(), strict=True,
            ):  # fmt: skip
                found[source, epoch, doc_id].append((start, stop, number))
    return {key: sorted(pieces) for key, pieces in found.items()}


def what_runs(root: Path, steps: range, open_set: Any = open_shards) -> list[tuple[Any, ...]]:
    """Everything about the micro-batches of some steps."""
    reader = open_set(root)
    found = []
    for step in steps:
        for slot in range(reader.manifest.segment_of(step).num_micro_batches):
            batch = reader.micro_batch(step, slot)
            arrays = (batch.tokens, batch.cu_seqlens, batch.last_labels, batch.source, batch.epoch,
                      batch.doc_id, batch.doc_start)  # fmt: skip
            found.append((step, slot, batch.num_targets, batch.workload,
                          *(array.tolist() for array in arrays)))  # fmt: skip
    return found
