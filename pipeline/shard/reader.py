"""Reading micro-batches: by step and slot, or as a data-parallel and context-parallel rank.

One interface, two places the tokens may be: in the shards, or in the token stores that the plan
points into. Both give the same micro-batches.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from pipeline.files.url_path import as_path
from pipeline.shard import schema
from pipeline.shard.blocks import Blocks
from pipeline.shard.digests import sha256_bytes
from pipeline.shard.manifest import Manifest, load_manifest
from pipeline.shard.micro_batch import MicroBatch, PackedTokens
from pipeline.shard.rank_chunks import RankChunks
from pipeline.shard.rank_reader import Reader
from pipeline.shard.rank_views import fill_packed
from pipeline.shard.row_groups import Row, Rows
from pipeline.shard.tables import FormatError, read_bytes
from pipeline.shard.token_store import StoreError, TokenStore

__all__ = ["PlanReader", "Reader", "ShardReader", "open_plan", "open_shards"]


def open_shards(directory: str | Path) -> Reader:
    """Micro-batches from the shards of a finished directory.

    Args:
        directory: a path, or a URL of an object store (`s3://bucket/set?region=..`), of which
            only row groups that are needed are fetched, each in one request.

    Raises:
        FormatError: the manifest or a table beside it is damaged, or newer than this program.
    """
    return ShardReader(load_manifest(as_path(directory)))


def open_plan(directory: str | Path) -> Reader:
    """Micro-batches from the plan and the token stores; needs no shards.

    Nothing is decompressed, so from memory it is faster than `open_shards`; from disk slower, since
    each piece is a read of its own, and a token part is hashed whole when it is first read from. Of
    a store in an object store the parts that are read are copied, up to 64 at a time.

    Raises:
        FormatError: as `open_shards`; also a token store that is missing or another one.
        StoreError: a table of a token store is damaged.
    """
    return PlanReader(load_manifest(as_path(directory)))


class ShardReader(Reader):
    """Tokens from `shards/`."""

    def micro_batch(self, step: int, slot: int) -> MicroBatch:
        row = self._rows.row("shards", step, slot)
        return _micro_batch(row, self._packed(step, slot))

    def _packed(self, step: int, slot: int) -> PackedTokens:
        row = self._rows.row("shards", step, slot)
        return PackedTokens(
            step=step,
            slot=slot,
            tokens=row.list_of(schema.TOKENS),
            cu_seqlens=row.list_of("cu_seqlens"),
            last_labels=row.list_of("last_labels"),
            workload=row.integer("workload"),
        )

    def _token_rows(self, step: int, slots: Sequence[int]) -> Rows:
        return self._rows.rows("shards", step, slots)

    def _fill(self, step: int, rows: Rows, chunks: RankChunks, out: np.ndarray) -> np.ndarray:
        return fill_packed(chunks, out, rows.each(schema.TOKENS), rows.values("last_labels"))

    def _plan_row(self, step: int, slot: int) -> Row:
        return self._rows.row("shards", step, slot)


class PlanReader(Reader):
    """Tokens from the token stores, to where `plan/` puts them."""

    def __init__(self, manifest: Manifest) -> None:
        super().__init__(manifest)
        self._blocks = Blocks()
        self._intact: set[tuple[int, int]] = set()
        """Source and part of the token parts whose blocks have been checked."""
        self._stores = [
            _open_store(manifest, index, partial(self._check_part, index))
            for index in range(len(manifest.sources))
        ]

    def micro_batch(self, step: int, slot: int) -> MicroBatch:
        return _micro_batch(self._plan_row(step, slot), self._packed(step, slot))

    def _packed(self, step: int, slot: int) -> PackedTokens:
        row = self._plan_row(step, slot)
        columns = [row.list_of(name) for name in _PIECES]
        cu_seqlens = row.list_of("cu_seqlens")
        tokens = self._blocks.take((int(cu_seqlens[-1]),), self.manifest.dtype)
        last_labels = self._gather(step, *columns, out=tokens)
        return PackedTokens(
            step=step,
            slot=slot,
            tokens=tokens,
            cu_seqlens=cu_seqlens,
            last_labels=last_labels,
            workload=row.integer("workload"),
        )

    def _token_rows(self, step: int, slots: Sequence[int]) -> Rows:
        return self._rows.rows("plan", step, slots)

    def _fill(self, step: int, rows: Rows, chunks: RankChunks, out: np.ndarray) -> np.ndarray:
        source, doc_id, doc_start, _ = (rows.values(name)[chunks.piece] for name in _PIECES)
        start = doc_start + chunks.start
        return self._gather(step, source, doc_id, start, start + chunks.length, out=out)

    def _gather(
        self,
        step: int,
        source: np.ndarray,
        doc_id: np.ndarray,
        start: np.ndarray,
        stop: np.ndarray,
        *,
        out: np.ndarray,
    ) -> np.ndarray:
        """Write parts of documents back to back to `out`; the label of each one's last token."""
        segment = self.manifest.segment_of(step)
        found = [out[:0]] * len(source)
        labels = np.empty(len(source), np.int64)
        for index in sorted(set(source.tolist())):
            mine = np.flatnonzero(source == index)
            pieces, labels[mine] = self._stores[index].pieces(
                doc_id[mine], start[mine], stop[mine], most_taken=segment.most_taken(index)
            )
            for place, piece in zip(mine.tolist(), pieces, strict=True):
                found[place] = piece
        if found:
            np.concatenate(found, out=out, casting="same_kind")
        return labels

    def _check_part(self, source: int, store: TokenStore, part: int) -> None:
        """Check a token part when it is first read from."""
        if (source, part) in self._intact:
            return
        try:
            store.check_blocks(part)
        except StoreError as error:
            path = store.part_path(part, "tokens")
            raise FormatError(f"is damaged: {error}", path=path) from error
        self._intact.add((source, part))


_PIECES = ("source", "doc_id", "doc_start", "doc_stop")


def _micro_batch(row: Row, packed: PackedTokens) -> MicroBatch:
    return MicroBatch(
        step=packed.step,
        slot=packed.slot,
        tokens=packed.tokens,
        cu_seqlens=packed.cu_seqlens,
        last_labels=packed.last_labels,
        source=row.list_of("source"),
        epoch=row.list_of("epoch"),
        doc_id=row.list_of("doc_id"),
        doc_start=row.list_of("doc_start"),
        num_targets=row.integer("num_targets"),
        workload=packed.workload,
    )


def _open_store(
    manifest: Manifest, index: int, on_open: Callable[[TokenStore, int], None]
) -> TokenStore:
    source, path = manifest.sources[index], manifest.store_path(index)
    identity = path / "source.json"
    if sha256_bytes(read_bytes(identity)) != source.store_sha256:
        raise FormatError(
            f"is not the token store of source {source.name!r} that the plan was made from: its "
            f"SHA-256 is not {source.store_sha256}",
            path=identity,
        )
    return TokenStore(path, on_open=on_open)
