"""Micro-batches of a set as ranks run them; where their tokens come from is left open.

Where a step lies is arithmetic on the manifest and the parts' footers, so reading can start at any
step at once. `reader.open_shards` and `reader.open_plan` give the two kinds that there are.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Self

import numpy as np

from pipeline.shard.exchange import RankExchange, rank_exchange
from pipeline.shard.manifest import Manifest
from pipeline.shard.micro_batch import Chunks, MicroBatch, PackedTokens, RankMicroBatch
from pipeline.shard.padding import PaddedMicroBatch, padded_view
from pipeline.shard.prefetch import ahead
from pipeline.shard.rank_chunks import RankChunks, Spans, chunks_of_rank, whole_pieces
from pipeline.shard.rank_views import rank_views
from pipeline.shard.row_groups import Row, Rows
from pipeline.shard.set_ranks import check_cp, replan_command, slots_of
from pipeline.shard.set_rows import SetRows
from pipeline.shard.steps_digest import steps_digest
from pipeline.shard.store_tables import StoreError
from pipeline.shard.tables import FormatError, NotInSet

TOGETHER_TOKENS = 1 << 18
"""Tokens of micro-batches that are made together: calls no longer count, and 6 MB are soon read."""


class Reader(ABC):
    """Micro-batches of one set. Holds open files: one reader a process or thread.

    Args:
        manifest: of the set, checked.
    """

    def __init__(self, manifest: Manifest) -> None:
        self.manifest = manifest
        self._rows = SetRows(manifest)

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

    @abstractmethod
    def _token_rows(self, step: int, slots: Sequence[int]) -> Rows:
        """Rows from which `_fill` finds the tokens of some micro-batches."""

    @abstractmethod
    def _fill(self, step: int, rows: Rows, chunks: RankChunks, out: np.ndarray) -> np.ndarray:
        """Write a rank's tokens of these rows: a `rank_views.Fill`."""

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
        slots = slots_of(self.manifest, step, dp_rank=dp_rank, dp_size=dp_size)
        check_cp(self.manifest, cp_rank, cp_size)
        groups = self._groups(step, slots, cp_rank, cp_size)
        return (view for group in groups for view in group)

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
            prefetch: micro-batches that are ready ahead, or a few more, since small ones are made
                several at a time; 0 for none, and no thread.

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
                slots_of(self.manifest, segment.first_step, dp_rank=dp_rank, dp_size=dp_size)
        check_cp(self.manifest, cp_rank, cp_size)
        reader = self.another() if prefetch else self
        steps = range(first_step, self.num_steps)
        slots = (slots_of(self.manifest, step, dp_rank=dp_rank, dp_size=dp_size) for step in steps)
        groups = (
            group
            for step, some in zip(steps, slots, strict=True)
            for group in reader._groups(step, some, cp_rank, cp_size)
        )
        if prefetch and first_step < self.num_steps:
            groups = ahead(groups, -(-prefetch // self._together(first_step)))
        return (view for group in groups for view in group)

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
        slots = slots_of(self.manifest, step, dp_rank=dp_rank, dp_size=dp_size)
        pad_multiple = self.manifest.pad_multiple(cp_size)
        if cp_size != 1 and pad_multiple == 1:
            raise NotInSet(
                f"no CP plan of degree {cp_size} with padding in {self.manifest.directory}; make "
                f"one with: {replan_command(self.manifest, cp_size)} --strategy padded_head_tail"
            )
        check_cp(self.manifest, cp_rank, cp_size)
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
        check_cp(self.manifest, cp_rank, cp_size)
        cu_seqlens = self._plan_row(step, slot).list_of("cu_seqlens")
        return rank_exchange(cu_seqlens, self._cp_row(step, slot, cp_size), cp_rank, cp_size)

    def shapes(self, step: int, *, dp_rank: int, dp_size: int, cp_size: int = 1) -> np.ndarray:
        """Tokens of every micro-batch of a data-parallel rank on every CP rank, without pads.

        Pipeline stages learn from it the shapes that they will receive, without a handshake. Read
        are plans alone, so it costs little ahead of the tokens.

        Returns:
            int64, shape (micro-batches, cp_size), rows in the order of `micro_batches`.
        """
        slots = slots_of(self.manifest, step, dp_rank=dp_rank, dp_size=dp_size)
        check_cp(self.manifest, 0, cp_size)
        tokens = np.zeros((len(slots), cp_size), np.int64)
        for index, slot in enumerate(slots):
            if cp_size == 1:
                tokens[index] = self._rows.row("plan", step, slot).list_of("cu_seqlens")[-1]
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

        SHA-256 over the content digests of the shards that hold these steps, of the last one of its
        rows below: so over every token and piece, whatever the files' encoding. A set that got more
        segments or other CP plans still has it, and a fork of it from there on. One of the same
        steps in other parts has another.

        Raises:
            NotInSet: there are fewer steps.
            FormatError: the table of files is damaged, or bytes of the last part's rows.
        """
        return steps_digest(self.manifest, stop_step, self.micro_batch)

    def chunks(self, step: int, slot: int, cp_size: int) -> Chunks:
        """The CP plan of a micro-batch for a degree above 1.

        Raises:
            NotInSet: no such step or slot, or the degree has no plan.
            FormatError: damaged bytes.
        """
        check_cp(self.manifest, 0, cp_size)
        row = self._rows.row(f"cp={cp_size}", step, slot)
        return Chunks(
            cp_rank=row.list_of("cp_rank"),
            piece=row.list_of("piece"),
            start=row.list_of("start"),
            stop=row.list_of("stop"),
            strategy=row.text("strategy"),
            predicted=row.list_of("predicted"),
            considered=row.list_of("considered"),
        )

    def _groups(
        self, step: int, slots: Sequence[int], cp_rank: int, cp_size: int
    ) -> Iterator[list[RankMicroBatch]]:
        """A rank's micro-batches of a step, as many at a time as are made together.

        Where that fails they are made one by one: an error comes in place of the micro-batch that
        needs the bytes, after all before it.
        """
        size = self._together(step)
        for at in range(0, len(slots), size):
            some = slots[at : at + size]
            try:
                groups = [self._views(step, some, cp_rank, cp_size)]
            except (FormatError, StoreError):
                groups = (self._views(step, [slot], cp_rank, cp_size) for slot in some)
            yield from groups

    def _together(self, step: int) -> int:
        return max(1, TOGETHER_TOKENS // self.manifest.segment_of(step).context_length)

    def _views(
        self, step: int, slots: Sequence[int], cp_rank: int, cp_size: int
    ) -> list[RankMicroBatch]:
        rows = self._token_rows(step, slots)
        cu_seqlens, pieces = rows.values("cu_seqlens"), rows.lengths("cu_seqlens") - 1
        if cp_size == 1:
            chunks = whole_pieces(cu_seqlens, pieces)
        else:
            table = self._rows.rows(f"cp={cp_size}", step, slots)
            spans = Spans(*(table.values(name) for name in Spans._fields))
            count = table.lengths("piece")
            chunks = chunks_of_rank(cu_seqlens, pieces, spans, count, cp_rank)
        workloads = rows.integers("workload").tolist()
        return rank_views(
            [(step, *place) for place in zip(slots, workloads, strict=True)],
            chunks,
            lambda chunks, out: self._fill(step, rows, chunks, out),
            cp_rank=cp_rank,
            cp_size=cp_size,
        )

    def _cp_row(self, step: int, slot: int, cp_size: int) -> Chunks | None:
        return None if cp_size == 1 else self.chunks(step, slot, cp_size)

    def _plan_row(self, step: int, slot: int) -> Row:
        """A row that has `cu_seqlens`, from the cheapest file at hand."""
        return self._rows.row("plan", step, slot)
