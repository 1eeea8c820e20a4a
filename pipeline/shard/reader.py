"""Reading micro-batches: by step and slot, or as a data-parallel and context-parallel rank.

One interface, two places the tokens may be: in the shards, or in the token stores that the plan
points into. Both give the same micro-batches.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from pipeline.shard import schema
from pipeline.shard.digests import sha256_bytes
from pipeline.shard.manifest import Manifest, load_manifest
from pipeline.shard.micro_batch import MicroBatch, spans
from pipeline.shard.parts import Row
from pipeline.shard.rank_reader import Reader
from pipeline.shard.tables import FormatError, read_bytes
from pipeline.shard.token_store import StoreError, TokenStore

__all__ = ["PlanReader", "Reader", "ShardReader", "open_plan", "open_shards"]


def open_shards(directory: str | Path) -> Reader:
    """Micro-batches from the shards of a finished directory.

    Raises:
        FormatError: the manifest or a table beside it is damaged, or newer than this program.
    """
    return ShardReader(load_manifest(directory))


def open_plan(directory: str | Path) -> Reader:
    """Micro-batches from the plan and the token stores; needs no shards.

    Slower than `open_shards`: each piece is a read of its own, and a token part is hashed whole
    when it is first read from.

    Raises:
        FormatError: as `open_shards`; also a token store that is missing or another one.
        StoreError: a table of a token store is damaged.
    """
    return PlanReader(load_manifest(directory))


class ShardReader(Reader):
    """Tokens from `shards/`."""

    def __init__(self, manifest: Manifest) -> None:
        super().__init__(manifest)
        self._columns = schema.shard_schema(manifest.dtype)

    def micro_batch(self, step: int, slot: int) -> MicroBatch:
        row = self._row("shards", step, slot, self._columns)
        return _micro_batch(
            row, tokens=row.list_of("tokens"), last_labels=row.list_of("last_labels")
        )

    def _plan_row(self, step: int, slot: int) -> Row:
        return self._row("shards", step, slot, self._columns)


class PlanReader(Reader):
    """Tokens from the token stores, to where `plan/` puts them."""

    def __init__(self, manifest: Manifest) -> None:
        super().__init__(manifest)
        self._stores = [_open_store(manifest, index) for index in range(len(manifest.sources))]
        self._intact: set[tuple[int, int]] = set()
        """Source and part of the token parts whose blocks have been checked."""

    def micro_batch(self, step: int, slot: int) -> MicroBatch:
        row = self._plan_row(step, slot)
        tokens, last_labels = self._gather(row)
        return _micro_batch(row, tokens=tokens, last_labels=last_labels)

    def _gather(self, row: Row) -> tuple[np.ndarray, np.ndarray]:
        """Token ids of a micro-batch, and each piece's last label."""
        cu_seqlens, source = row.list_of("cu_seqlens"), row.list_of("source")
        tokens = np.empty(cu_seqlens[-1], self.manifest.dtype)
        last_labels = np.full(len(source), schema.NO_LABEL, np.int64)
        doc_id, start, stop = (row.list_of(name) for name in ("doc_id", "doc_start", "doc_stop"))
        segment = self.manifest.segment_of(row.integer("step"))
        for index in np.unique(source):
            store = self._stores[index]
            mine = np.flatnonzero(source == index)
            self._check_blocks(int(index), doc_id[mine])
            taken = np.minimum(store.lengths_of(doc_id[mine]), segment.most_taken(int(index)))
            goes_on = stop[mine] < taken
            ids = store.gather(doc_id[mine], start[mine], stop[mine] + goes_on)
            lengths = stop[mine] - start[mine]
            after = np.cumsum(lengths + goes_on) - 1  # the last id read of each piece
            last_labels[mine[goes_on]] = ids[after[goes_on]]
            kept = np.ones(len(ids), np.bool_)
            kept[after[goes_on]] = False
            tokens[spans(cu_seqlens[mine], lengths)] = ids[kept]
        return tokens, last_labels

    def _check_blocks(self, source: int, doc_id: np.ndarray) -> None:
        """Check the token parts of these documents, each when it is first read from."""
        store = self._stores[source]
        for part in np.unique(store.part_of(doc_id)).tolist():
            if (source, part) not in self._intact:
                try:
                    store.check_blocks(part)
                except StoreError as error:
                    path = store.part_path(part, "tokens")
                    raise FormatError(f"is damaged: {error}", path=path) from error
                self._intact.add((source, part))


def _micro_batch(row: Row, *, tokens: np.ndarray, last_labels: np.ndarray) -> MicroBatch:
    return MicroBatch(
        step=row.integer("step"),
        slot=row.integer("slot"),
        tokens=tokens,
        cu_seqlens=row.list_of("cu_seqlens"),
        source=row.list_of("source"),
        epoch=row.list_of("epoch"),
        doc_id=row.list_of("doc_id"),
        doc_start=row.list_of("doc_start"),
        last_labels=last_labels,
        num_targets=row.integer("num_targets"),
        workload=row.integer("workload"),
    )


def _open_store(manifest: Manifest, index: int) -> TokenStore:
    source, path = manifest.sources[index], manifest.store_path(index)
    identity = path / "source.json"
    if sha256_bytes(read_bytes(identity)) != source.store_sha256:
        raise FormatError(
            f"is not the token store of source {source.name!r} that the plan was made from: its "
            f"SHA-256 is not {source.store_sha256}",
            path=identity,
        )
    return TokenStore(path)
