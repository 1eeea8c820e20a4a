"""One digest of what a set's first steps consist of."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pyarrow as pa

from pipeline.shard import schema
from pipeline.shard.digests import content_sha256, sha256_bytes
from pipeline.shard.manifest import Manifest
from pipeline.shard.micro_batch import MicroBatch
from pipeline.shard.superseded import read_set_table
from pipeline.shard.tables import FormatError, NotInSet


def steps_digest(manifest: Manifest, stop_step: int, read: Callable[[int, int], MicroBatch]) -> str:
    """`Reader.steps_digest` of a manifest.

    Args:
        manifest: of the set.
        stop_step: the step after the last that counts.
        read: gives the micro-batch of a step and slot; of steps whose part goes on behind them.

    Raises:
        NotInSet: there are fewer steps.
        FormatError: the table of files is damaged, or lists no shards.
    """
    if not 0 <= stop_step <= manifest.num_steps:
        raise NotInSet(
            f"step {stop_step} is not in 0..{manifest.num_steps} of {manifest.directory}"
        )
    directory, digest = manifest.directory, str(manifest.digests["files.parquet"])
    path = directory / "files.parquet"
    files = read_set_table(directory, "files.parquet", schema.FILES, digest)
    columns = (files[name].to_pylist() for name in ("path", "content_sha256"))
    content = dict(zip(*columns, strict=True))
    parts = manifest.part_of(stop_step - 1) + 1 if stop_step else 0
    found = [content.get(f"shards/{schema.part_name(part)}.parquet") for part in range(parts)]
    if None in found:
        raise FormatError(f"lists no shards for part {found.index(None)}", path=path)
    if 0 < stop_step < manifest.num_steps and manifest.part_of(stop_step) < parts:
        first = manifest.first_step_of(parts - 1)
        slots = range(manifest.segment_of(first).num_micro_batches)
        rows = [read(step, slot) for step in range(first, stop_step) for slot in slots]
        found[-1] = content_sha256(_table(rows, manifest.dtype))
    return sha256_bytes("".join(map(str, found)).encode())


def _table(rows: Sequence[MicroBatch], dtype: str) -> pa.Table:
    """Micro-batches as the rows of a shard."""
    columns = schema.shard_schema(dtype)
    arrays = [pa.array([getattr(row, field.name) for row in rows], field.type) for field in columns]
    return pa.table(arrays, schema=columns)
