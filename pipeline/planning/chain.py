"""Where a segment is planned: after the others of its chain, or as the first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Self, TypeAlias

import numpy as np
import pyarrow as pa

from packer.passes import EarlierEpoch
from packer.workload import Workload
from pipeline.built import workload_of
from pipeline.config import fingerprint
from pipeline.shard import schema
from pipeline.shard.manifest import Manifest
from pipeline.shard.tables import read_table
from pipeline.shard.token_store import TokenStore

Pool: TypeAlias = dict[int, tuple[EarlierEpoch, ...]]
"""What a chain has run, by source: epochs 0, 1, .., to the last of which something has run."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ChainEnd:
    """The end of a chain, to which a segment is added.

    Attributes:
        stores: of the chain's sources, those that the segment brings included.
        numbers: which of them the segment's sources are, in its own order.
        pool: what the chain has run of them.
        segments: how many there are.
        steps, parts: how many all segments have.
        steps_table, tail_table: `steps.parquet` and `tail.parquet` of them.
        workload: its model; None of a chain without segments, whose configuration says it.
    """

    stores: Sequence[TokenStore]
    numbers: Sequence[int]
    pool: Pool = field(default_factory=dict)
    segments: int = 0
    steps: int = 0
    parts: int = 0
    steps_table: pa.Table = field(default_factory=schema.STEPS.empty_table)
    tail_table: pa.Table = field(default_factory=schema.TAIL.empty_table)
    workload: Workload | None = None

    @classmethod
    def start(cls, stores: Sequence[TokenStore]) -> Self:
        """Of a chain without segments, whose first takes these sources."""
        return cls(stores=stores, numbers=range(len(stores)))

    @classmethod
    def of(
        cls,
        manifest: Manifest,
        stores: Sequence[TokenStore],
        numbers: Sequence[int],
        pool: Pool,
    ) -> Self:
        """Of a finished set.

        Args:
            manifest: of the set.
            stores: of its sources, and of those that the segment brings.
            numbers: as in `ChainEnd`.
            pool: what the set's segments have run.
        """
        steps = read_table(manifest.directory / "steps.parquet", schema.STEPS)
        return cls(
            stores=stores,
            numbers=numbers,
            pool=pool,
            segments=len(manifest.segments),
            steps=manifest.num_steps,
            parts=manifest.num_parts,
            steps_table=with_sources(steps, len(stores)),
            tail_table=read_table(manifest.directory / "tail.parquet", schema.TAIL),
            workload=workload_of(manifest),
        )

    @property
    def segment_stores(self) -> list[TokenStore]:
        """Of the segment's sources, in its own order."""
        return [self.stores[number] for number in self.numbers]


def with_sources(steps: pa.Table, num_sources: int) -> pa.Table:
    """The step table for another number of sources: new ones have no tokens, old ones fall out."""
    column = steps.column("source_tokens").combine_chunks()
    had = column.flatten().to_numpy().reshape(steps.num_rows, -1)  # (steps, sources)
    counts = np.zeros((steps.num_rows, num_sources), np.int64)
    kept = min(num_sources, had.shape[1])
    counts[:, :kept] = had[:, :kept]
    offsets = pa.array(np.arange(steps.num_rows + 1, dtype=np.int32) * num_sources)
    lists = pa.ListArray.from_arrays(offsets, pa.array(counts.reshape(-1)))
    index = schema.STEPS.get_field_index("source_tokens")
    return steps.set_column(index, schema.STEPS.field(index), lists)


def plan_keys(manifest: Manifest) -> list[str]:
    """What the plan of each segment depends on."""
    later = (str(segment.plan_key) for segment in manifest.segments[1:])
    return [manifest.fingerprints["plan"], *later]


def chain_key(keys: Sequence[str]) -> str:
    """What the plan of a whole chain depends on: the key of its one segment, or of all."""
    return keys[0] if len(keys) == 1 else fingerprint({"segments": list(keys)})
