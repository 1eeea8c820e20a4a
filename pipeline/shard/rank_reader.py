"""Micro-batches of a set as ranks run them; where their tokens come from is left open.

Where a step lies is arithmetic on the manifest and the parts' footers, so reading can start at any
step at once. `reader.open_shards` and `reader.open_plan` give the two kinds that there are.
"""

from __future__ import annotations

import shlex
from abc import ABC, abstractmethod
from collections.abc import Iterator
from functools import lru_cache
from typing import Self

import numpy as np

from packer.orders import slots_of_rank
from pipeline.shard import schema
from pipeline.shard.digests import sha256_bytes
from pipeline.shard.exchange import RankExchange, rank_exchange
from pipeline.shard.manifest import Manifest
from pipeline.shard.micro_batch import (
    Chunks,
    MicroBatch,
    PackedTokens,
    RankMicroBatch,
    rank_view,
)
from pipeline.shard.padding import PaddedMicroBatch, padded_view
from pipeline.shard.parts import PartFiles, Row
from pipeline.shard.prefetch import ahead
from pipeline.shard.tables import FormatError, NotInSet, read_table

_SPARE_GROUPS = 2


class Reader(ABC):
    """Micro-batches of one set. Holds open files: one reader a process or thread.

    Args:
        manifest: of the set, checked.
    """

    def __init__(self, manifest: Manifest) -> None:
        self.manifest = manifest
        digest = str(manifest.digests.get("row_groups.parquet"))
        self._parts = PartFiles(
            manifest.directory,
            digest,
            dtype=manifest.dtype,
            kept_groups=_groups_of_a_step(manifest),
        )

        self._place = lru_cache(maxsize=64)(self._find)

    @property
    def num_steps(self) -> int:
        return self.manifest.num_steps

    def another(self) -> Self:
        """A reader of the same set, for another thread."""
        return type(self)(self.manifest)

    @abstractmethod
    def micro_batch(self, step: int, slot: int) -> MicroBatch:
        """The micro-batch at a slot of a step.

        Raises:
            NotInSet: no such step or slot.
            FormatError: the bytes that hold it are damaged; names the file and the row group.
        """

    @abstractmethod
    def _packed(self, step: int, slot: int) -> PackedTokens:
        """As `micro_batch`, without where its tokens come from."""

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

    def batches(
        self,
        first_step: int = 0,
        *,
        dp_rank: int,
        dp_size: int,
        cp_rank: int = 0,
        cp_size: int = 1,
        prefetch: int = 2,
    ) -> Iterator[RankMicroBatch]:
        """All that a rank runs from a step on to the last, step by step as `micro_batches` has it.

        A thread reads ahead, with a reader of its own, so that this one may be used meanwhile. It
        starts with the first micro-batch and ends with the iterator, also where that is dropped.

        Args:
            first_step: where to begin, all the state of a run; `num_steps` gives nothing.
            dp_rank: 0 <= dp_rank < dp_size.
            dp_size: must divide the number of micro-batches of all these steps.
            cp_rank: 0 <= cp_rank < cp_size.
            cp_size: 1, or a degree that has a plan.
            prefetch: micro-batches that are ready ahead, one more is in the making; 0 for none, and
                no thread.

        Raises:
            NotInSet: a step, rank or size that this set does not allow; before the first
                micro-batch.
            FormatError: damaged bytes; in place of the micro-batch that needs them.
        """
        if not 0 <= first_step <= self.num_steps:
            raise NotInSet(
                f"step {first_step} is not in 0..{self.num_steps} of {self.manifest.directory}"
            )
        if prefetch < 0:
            raise ValueError(f"prefetch is {prefetch}, must be 0 or more")
        for segment in self.manifest.segments:
            if segment.stop_step > first_step and segment.steps:
                self._slots(segment.first_step, dp_rank=dp_rank, dp_size=dp_size)
        self._check_cp(cp_rank, cp_size)
        reader = self.another() if prefetch else self
        found = (
            batch
            for step in range(first_step, self.num_steps)
            for batch in reader.micro_batches(
                step, dp_rank=dp_rank, dp_size=dp_size, cp_rank=cp_rank, cp_size=cp_size
            )
        )
        return ahead(found, prefetch) if prefetch else found

    def padded_micro_batches(
        self,
        step: int,
        *,
        dp_rank: int,
        dp_size: int,
        cp_rank: int = 0,
        cp_size: int = 1,
        pad_token: int = 0,
    ) -> Iterator[PaddedMicroBatch]:
        """As `micro_batches`, for kernels that need every piece padded (Megatron's).

        Raises:
            NotInSet: as `micro_batches`; also a degree whose plan has no padding.
            FormatError: damaged bytes.
        """
        slots = self._slots(step, dp_rank=dp_rank, dp_size=dp_size)
        pad_multiple = self.manifest.pad_multiple(cp_size)
        if cp_size != 1 and pad_multiple == 1:
            raise NotInSet(
                f"no CP plan of degree {cp_size} with padding in {self.manifest.directory}; make "
                f"one with: {self._replan(cp_size)} --strategy padded_head_tail"
            )
        self._check_cp(cp_rank, cp_size)
        return (
            padded_view(
                self._packed(step, slot),
                self._cp_row(step, slot, cp_size),
                cp_rank,
                cp_size,
                pad_multiple=pad_multiple,
                pad_token=pad_token,
            )
            for slot in slots
        )

    def exchange(self, step: int, slot: int, *, cp_rank: int, cp_size: int) -> RankExchange:
        """Which keys and values a CP rank sends, receives and reads; no token is read for it.

        Raises:
            NotInSet: no such step, slot or rank, or the degree has no plan.
            FormatError: damaged bytes.
        """
        self._check_cp(cp_rank, cp_size)
        cu_seqlens = self._plan_row(step, slot).list_of("cu_seqlens")
        return rank_exchange(cu_seqlens, self._cp_row(step, slot, cp_size), cp_rank, cp_size)

    def shapes(self, step: int, *, dp_rank: int, dp_size: int, cp_size: int = 1) -> np.ndarray:
        """Tokens of every micro-batch of a data-parallel rank on every CP rank, without pads.

        Pipeline stages learn from it the shapes that they will receive, without a handshake. Read
        are plans alone, so it costs little ahead of the tokens.

        Returns:
            int64, shape (micro-batches, cp_size), rows in the order of `micro_batches`.
        """
        slots = self._slots(step, dp_rank=dp_rank, dp_size=dp_size)
        self._check_cp(0, cp_size)
        tokens = np.zeros((len(slots), cp_size), np.int64)
        for index, slot in enumerate(slots):
            if cp_size == 1:
                tokens[index] = self._row("plan", step, slot).list_of("cu_seqlens")[-1]
            else:
                chunks = self.chunks(step, slot, cp_size)
                length = np.where(chunks.piece >= 0, chunks.stop - chunks.start, 0)
                np.add.at(tokens[index], chunks.cp_rank, length)
        return tokens

    def global_targets(self, step: int) -> int:
        """Tokens of the whole step that have a label: what its loss is divided by."""
        self.manifest.segment_of(step)
        return int(self.manifest.step_targets[step])

    def steps_digest(self, stop_step: int) -> str:
        """What the steps below one consist of, for a checkpoint to know the set again.

        SHA-256 over the content digests of the shards that hold these steps, each part whole: so
        over every token and piece, whatever the files' encoding. A set that got more segments or
        other CP plans still has it. One of the same steps in other parts has another.

        Raises:
            NotInSet: there are fewer steps.
            FormatError: the table of files is damaged.
        """
        manifest = self.manifest
        if not 0 <= stop_step <= self.num_steps:
            raise NotInSet(
                f"step {stop_step} is not in 0..{self.num_steps} of {manifest.directory}"
            )
        path = manifest.directory / "files.parquet"
        files = read_table(path, schema.FILES, sha256=str(manifest.digests["files.parquet"]))
        columns = (files[name].to_pylist() for name in ("path", "content_sha256"))
        content = dict(zip(*columns, strict=True))
        parts = manifest.part_of(stop_step - 1) + 1 if stop_step else 0
        found = [content.get(f"shards/{schema.part_name(part)}.parquet") for part in range(parts)]
        if None in found:
            raise FormatError(f"lists no shards for part {found.index(None)}", path=path)
        return sha256_bytes("".join(map(str, found)).encode())

    def chunks(self, step: int, slot: int, cp_size: int) -> Chunks:
        """The CP plan of a micro-batch for a degree above 1.

        Raises:
            NotInSet: no such step or slot, or the degree has no plan.
            FormatError: damaged bytes.
        """
        self._check_cp(0, cp_size)
        row = self._row(f"cp={cp_size}", step, slot)
        return Chunks(
            cp_rank=row.list_of("cp_rank"),
            piece=row.list_of("piece"),
            start=row.list_of("start"),
            stop=row.list_of("stop"),
            strategy=row.text("strategy"),
            predicted=row.list_of("predicted"),
            considered=row.list_of("considered"),
        )

    def _view(self, step: int, slot: int, cp_rank: int, cp_size: int) -> RankMicroBatch:
        row = self._cp_row(step, slot, cp_size)
        return rank_view(self._packed(step, slot), row, cp_rank, cp_size)

    def _cp_row(self, step: int, slot: int, cp_size: int) -> Chunks | None:
        return None if cp_size == 1 else self.chunks(step, slot, cp_size)

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
                f"{[1, *self.manifest.cp_sizes]}; make one with: {self._replan(cp_size)}"
            )
        if not 0 <= cp_rank < cp_size:
            raise NotInSet(f"cp_rank {cp_rank} is not in 0..{cp_size - 1}")

    def _replan(self, cp_size: int) -> str:
        """The command that plans a degree."""
        return f"steelyard replan {shlex.quote(str(self.manifest.directory))} --cp-size {cp_size}"

    def _plan_row(self, step: int, slot: int) -> Row:
        """A row that has `cu_seqlens`, from the cheapest file at hand."""
        return self._row("plan", step, slot)

    def _row(self, folder: str, step: int, slot: int) -> Row:
        """The row of a micro-batch in `folder`, whose parts have the plan's rows in its order."""
        num_micro_batches, part, first = self._place(step)
        if not 0 <= slot < num_micro_batches:
            raise NotInSet(f"slot {slot} is not in 0..{num_micro_batches - 1} of step {step}")
        place = (step - first) * num_micro_batches + slot
        path = f"{folder}/{part}.parquet"
        row = self._parts.row(path, place)
        found = (row.integer("step"), row.integer("slot"))
        if found != (step, slot):
            raise FormatError(
                f"row {place} is step {found[0]}, slot {found[1]}, must be step {step}, "
                f"slot {slot}",
                path=self.manifest.directory / path,
            )
        return row

    def _find(self, step: int) -> tuple[int, str, int]:
        """A step's number of micro-batches, the name of its part, and that part's first step."""
        part = self.manifest.part_of(step)
        num_micro_batches = self.manifest.segment_of(step).num_micro_batches
        return num_micro_batches, schema.part_name(part), self.manifest.first_step_of(part)


def _groups_of_a_step(manifest: Manifest) -> int:
    """How many row groups to keep decoded, so that a step's rows never decode one twice.

    A step may begin inside a group; groups of the plan and of a CP plan are needed beside. Where a
    row is a group there is nothing to keep, and what is not kept stays in the processor's cache.
    """
    rows = manifest.rows_per_group
    slots = max((segment.num_micro_batches for segment in manifest.segments), default=1)
    return _SPARE_GROUPS + (0 if rows == 1 else -(-slots // rows) + 1)
