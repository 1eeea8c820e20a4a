"""Micro-batches of a set as ranks run them; where their tokens come from is left open.

Where a step lies is arithmetic on the manifest and the parts' footers, so reading can start at any
step at once. `reader.open_shards` and `reader.open_plan` give the two kinds that there are.
"""

from __future__ import annotations

import shlex
from abc import ABC, abstractmethod
from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from packer.orders import slots_of_rank
from pipeline.shard import schema
from pipeline.shard.exchange import RankExchange, rank_exchange
from pipeline.shard.manifest import Manifest
from pipeline.shard.micro_batch import Chunks, MicroBatch, RankMicroBatch, rank_view
from pipeline.shard.padding import PaddedMicroBatch, padded_view
from pipeline.shard.parts import PartFiles, Row
from pipeline.shard.tables import FormatError, NotInSet


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
                self.micro_batch(step, slot),
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
                length = np.where(chunks.piece >= 0, chunks.stop - chunks.start, 0)
                np.add.at(tokens[index], chunks.cp_rank, length)
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
            considered=row.list_of("considered"),
        )

    def _view(self, step: int, slot: int, cp_rank: int, cp_size: int) -> RankMicroBatch:
        row = self._cp_row(step, slot, cp_size)
        return rank_view(self.micro_batch(step, slot), row, cp_rank, cp_size)

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
