"""Reading micro-batches: by step and slot, or as a data-parallel and context-parallel rank.

One interface, two places the tokens may be: in the shards, or in the token stores that the plan
points into. Both give the same micro-batches. Where a step lies is arithmetic on the manifest and
the parts' footers, so reading can start at any step at once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

from packer.orders import slots_of_rank
from pipeline.shard import schema
from pipeline.shard.digests import sha256_bytes
from pipeline.shard.manifest import Manifest, load_manifest
from pipeline.shard.micro_batch import Chunks, MicroBatch, RankMicroBatch, rank_view, spans
from pipeline.shard.parts import PartFiles, Row
from pipeline.shard.tables import FormatError, NotInSet, read_bytes
from pipeline.shard.token_store import StoreError, TokenStore


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


class Reader(ABC):
    """Micro-batches of one set. Holds open files: one reader a process or thread.

    Args:
        manifest: of the set, checked.
    """

    def __init__(self, manifest: Manifest) -> None:
        self.manifest = manifest
        digest = str(manifest.digests.get("row_groups.parquet"))
        self._parts = PartFiles(manifest.directory, digest)

    @property
    def num_steps(self) -> int:
        return self.manifest.num_steps

    @abstractmethod
    def micro_batch(self, step: int, slot: int) -> MicroBatch:
        """The micro-batch at a slot of a step.

        Raises:
            NotInSet: no such step or slot.
            FormatError: the bytes that hold it are damaged; names the file and the row group.
        """

    def micro_batches(
        self, step: int, *, dp_rank: int, dp_size: int, cp_rank: int = 0, cp_size: int = 1
    ) -> Iterator[RankMicroBatch]:
        """What a rank runs in a step, in the order in which it runs it.

        Args:
            step: counted along the whole chain.
            dp_rank: 0 <= dp_rank < dp_size.
            dp_size: must divide the step's number of micro-batches.
            cp_rank: 0 <= cp_rank < cp_size.
            cp_size: 1, or a degree that has a plan.

        Raises:
            NotInSet: a rank or size that this set does not allow; before the first micro-batch.
            FormatError: damaged bytes.
        """
        slots = self._slots(step, dp_rank=dp_rank, dp_size=dp_size)
        self._check_cp(cp_rank, cp_size)
        return (self._view(step, slot, cp_rank, cp_size) for slot in slots)

    def shapes(self, step: int, *, dp_rank: int, dp_size: int, cp_size: int = 1) -> np.ndarray:
        """Tokens of every micro-batch of a data-parallel rank on every CP rank.

        Pipeline stages learn from it the shapes that they will receive, without a handshake.

        Returns:
            int64, shape (micro-batches, cp_size), rows in the order of `micro_batches`.
        """
        slots = self._slots(step, dp_rank=dp_rank, dp_size=dp_size)
        self._check_cp(0, cp_size)
        tokens = np.zeros((len(slots), cp_size), np.int64)
        for index, slot in enumerate(slots):
            if cp_size == 1:
                tokens[index] = self._plan_row(step, slot).list_of("cu_seqlens")[-1]
            else:
                chunks = self.chunks(step, slot, cp_size)
                np.add.at(tokens[index], chunks.cp_rank, chunks.stop - chunks.start)
        return tokens

    def global_targets(self, step: int) -> int:
        """Tokens of the whole step that have a label: what its loss is divided by."""
        self.manifest.segment_of(step)
        return int(self.manifest.step_targets[step])

    def chunks(self, step: int, slot: int, cp_size: int) -> Chunks:
        """The CP plan of a micro-batch for a degree above 1.

        Raises:
            NotInSet: no such step or slot, or the degree has no plan.
            FormatError: damaged bytes.
        """
        self._check_cp(0, cp_size)
        row = self._row(f"cp={cp_size}", step, slot, schema.CP_PLAN)
        return Chunks(
            cp_rank=row.list_of("cp_rank"),
            piece=row.list_of("piece"),
            start=row.list_of("start"),
            stop=row.list_of("stop"),
            strategy=row.text("strategy"),
            predicted=row.list_of("predicted"),
        )

    def _view(self, step: int, slot: int, cp_rank: int, cp_size: int) -> RankMicroBatch:
        chunks = None if cp_size == 1 else self.chunks(step, slot, cp_size)
        return rank_view(self.micro_batch(step, slot), chunks, cp_rank, cp_size)

    def _slots(self, step: int, *, dp_rank: int, dp_size: int) -> list[int]:
        slots = self.manifest.segment_of(step).num_micro_batches
        if dp_size < 1 or slots % dp_size:
            allowed = [size for size in range(1, slots + 1) if slots % size == 0]
            raise NotInSet(
                f"dp_size {dp_size} does not divide the {slots} micro-batches of step {step}; "
                f"use one of {allowed}, or plan with another num_micro_batches"
            )
        return slots_of_rank(
            self.manifest.micro_batch_order,
            dp_rank=dp_rank,
            dp_size=dp_size,
            num=slots // dp_size,
        )

    def _check_cp(self, cp_rank: int, cp_size: int) -> None:
        if cp_size != 1 and cp_size not in self.manifest.cp_sizes:
            raise NotInSet(
                f"no CP plan of degree {cp_size} in {self.manifest.directory}, only of "
                f"{[1, *self.manifest.cp_sizes]}; make one with: steelyard replan "
                f"{self.manifest.directory} --cp-size {cp_size}"
            )
        if not 0 <= cp_rank < cp_size:
            raise NotInSet(f"cp_rank {cp_rank} is not in 0..{cp_size - 1}")

    def _plan_row(self, step: int, slot: int) -> Row:
        """A row that has `cu_seqlens`, from the cheapest file at hand."""
        return self._row("plan", step, slot, schema.PLAN)

    def _row(self, folder: str, step: int, slot: int, columns: pa.Schema) -> Row:
        """The row of a micro-batch in `folder`, whose parts have the plan's rows in its order."""
        manifest = self.manifest
        segment = manifest.segment_of(step)
        if not 0 <= slot < segment.num_micro_batches:
            raise NotInSet(
                f"slot {slot} is not in 0..{segment.num_micro_batches - 1} of step {step}"
            )
        part = manifest.part_of(step)
        place = (step - manifest.first_step_of(part)) * segment.num_micro_batches + slot
        path = f"{folder}/{schema.part_name(part)}.parquet"
        row = self._parts.row(path, place, columns)
        found = (row.integer("step"), row.integer("slot"))
        if found != (step, slot):
            raise FormatError(
                f"row {place} is step {found[0]}, slot {found[1]}, must be step {step}, "
                f"slot {slot}",
                path=manifest.directory / path,
            )
        return row


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
