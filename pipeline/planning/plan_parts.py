"""Steps to files: plan parts of whole steps, the steps table, and the totals over them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from packer.plan import Pieces, Steps
from pipeline.files.contents import parquet_source
from pipeline.memory import give_back
from pipeline.planning.chain import ChainEnd
from pipeline.planning.mixing import PlanError
from pipeline.planning.runs import RunGroups, write_inverse
from pipeline.shard import schema
from pipeline.shard.writer import FileReceipt, write_part, write_table

MOST_ENTRIES = (1 << 31) - 1
"""Entries of a list column in one file."""

_PARTS_A_TRIM = 64


class PlanParts:
    """Gathers a segment's steps into parts of `steps_per_part` and writes each with its inverse.

    Args:
        root: where `plan/` and the tables go.
        scratch: where inverses go.
        groups: how the stores are read when tokens move.
        steps_per_part: steps of a part; its last may have fewer.
        chain: its end, after which steps, parts and the tables go on.
    """

    def __init__(
        self,
        root: Path,
        scratch: Path,
        *,
        groups: RunGroups,
        steps_per_part: int,
        chain: ChainEnd,
    ) -> None:
        self._root, self._scratch, self._groups = root, scratch, groups
        self._steps_per_part = steps_per_part
        self._chain = chain
        self._held: list[Steps] = []
        self._receipts: list[FileReceipt] = []
        self._step_tables: list[pa.Table] = []
        self._targets = self._tokens = self._pieces = self._documents = self._cut = 0
        self.num_steps = 0

    @property
    def num_parts(self) -> int:
        return len(self._receipts)

    @property
    def has_steps(self) -> bool:
        return self.num_steps > 0

    def add(self, steps: Steps) -> None:
        """Take consecutive steps, counted from 0; whole parts are written as they fill."""
        self._held.append(replace(steps, first_step=self._chain.steps + steps.first_step))
        self.num_steps += steps.num_steps
        if sum(held.num_steps for held in self._held) < self._steps_per_part:
            return
        joined = Steps.concatenate(self._held)
        whole = joined.num_steps - joined.num_steps % self._steps_per_part
        for start in range(0, whole, self._steps_per_part):
            self._write(joined.take_steps(start, start + self._steps_per_part))
        rest = joined.take_steps(whole, joined.num_steps)
        self._held = [rest] if rest.num_steps else []

    def finish(self, tail: Pieces) -> list[FileReceipt]:
        """Write what is held, and the chain's `steps.parquet` and `tail.parquet`.

        Args:
            tail: what no step holds.

        Returns:
            Receipts of the parts, then of the two tables.
        """
        if self._held:
            self._write(Steps.concatenate(self._held))
            self._held = []
        chain = self._chain
        steps = [chain.steps_table, *self._step_tables]
        tails = [chain.tail_table, tail_table(tail, chain.segments)]
        return [
            *self._receipts,
            write_table(_joined(steps), self._root, "steps.parquet"),
            write_table(_joined(tails), self._root, "tail.parquet"),
        ]

    def totals(self, tail: Pieces) -> dict[str, Any]:
        """Counts over every piece of the segment, placed or in the tail (FORMAT.md section 6)."""
        return {
            "stream_documents": self._documents + int((tail.doc_start == 0).sum()),
            "stream_tokens": self._tokens + int(tail.tokens.sum()),
            "stream_pieces": self._pieces + len(tail),
            "cut_documents": self._cut + _num_cut(tail),
            "steps": self.num_steps,
            "placed_tokens": self._tokens,
            "targets": self._targets,
            "tail_pieces": len(tail),
            "tail_tokens": int(tail.tokens.sum()),
        }

    def _write(self, steps: Steps) -> None:
        part = self._chain.parts + len(self._receipts)
        self._check_size(steps, part)
        name = f"plan/{schema.part_name(part)}.parquet"
        write_inverse(self._scratch, part, steps.pieces, self._groups)
        self._receipts.append(write_part(plan_table(steps), self._root, name))
        table = self._steps_table(steps, part)
        self._step_tables.append(table)
        self._pieces += len(steps.pieces)
        self._documents += int((steps.pieces.doc_start == 0).sum())
        self._cut += _num_cut(steps.pieces)
        if len(self._receipts) % _PARTS_A_TRIM == 0:
            give_back()

    def _check_size(self, steps: Steps, part: int) -> None:
        """Refuse what a shard or the steps table cannot hold, before a token moves."""
        tokens = int(steps.pieces.tokens.sum())
        remedy = "lower shards.shard_tokens"
        if steps.num_steps == 1:
            remedy = "it is one step: lower packing.num_micro_batches or packing.context_length"
        check_entries(tokens, f"shard {part}", remedy)
        shares = (steps.first_step + steps.num_steps) * len(self._chain.stores)
        remedy = "join sources, or make steps larger"
        check_entries(shares, "steps.parquet, with a share of each source a step,", remedy)

    def _steps_table(self, steps: Steps, part: int) -> pa.Table:
        pieces, count = steps.pieces, steps.num_steps
        by_source = np.zeros((count, len(self._chain.stores)), np.int64)
        np.add.at(by_source, (steps.piece_step - steps.first_step, pieces.source), pieces.tokens)
        per_step = (count, steps.num_micro_batches)
        tokens = by_source.sum(axis=1)
        targets = steps.row_targets.reshape(per_step).sum(axis=1)
        workload = steps.row_workload.reshape(per_step)
        before_tokens = self._before("cumulative_tokens") + self._tokens
        before_targets = self._before("cumulative_targets") + self._targets
        self._tokens += int(tokens.sum())
        self._targets += int(targets.sum())
        return pa.table(
            {
                "step": steps.first_step + np.arange(count),
                "segment": np.full(count, self._chain.segments, np.int32),
                "part": np.full(count, part, np.int32),
                "tokens": tokens,
                "targets": targets,
                "source_tokens": list(by_source),
                "workload_max": workload.max(axis=1),
                "workload_total": workload.sum(axis=1),
                "cumulative_tokens": before_tokens + np.cumsum(tokens),
                "cumulative_targets": before_targets + np.cumsum(targets),
            },
            schema=schema.STEPS,
        )

    def _before(self, name: str) -> int:
        """A running total of the chain so far."""
        column = self._chain.steps_table.column(name)
        return column[-1].as_py() if len(column) else 0


def _joined(tables: list[pa.Table]) -> pa.Table:
    """Tables end to end; those without rows leave no trace."""
    return pa.concat_tables([table for table in tables if table.num_rows] or tables[:1])


def plan_table(steps: Steps) -> pa.Table:
    """The rows of a plan part (FORMAT.md section 2)."""
    pieces = steps.pieces
    offsets = as_offsets(steps.row_offsets)

    def ragged(values: np.ndarray, dtype: type) -> pa.Array:
        return pa.ListArray.from_arrays(offsets, pa.array(values.astype(dtype)))

    rows = np.arange(steps.num_rows)
    return pa.table(
        {
            "step": steps.first_step + rows // steps.num_micro_batches,
            "slot": (rows % steps.num_micro_batches).astype(np.int32),
            "cu_seqlens": cu_seqlens_array(pieces.tokens, steps.row_offsets),
            "source": ragged(pieces.source, np.int32),
            "epoch": ragged(pieces.epoch, np.int32),
            "doc_id": ragged(pieces.doc_id, np.int64),
            "doc_start": ragged(pieces.doc_start, np.int64),
            "doc_stop": ragged(pieces.doc_stop, np.int64),
            "position": ragged(pieces.position, np.int64),
            "num_targets": steps.row_targets,
            "workload": steps.row_workload,
        },
        schema=schema.PLAN,
    )


def cu_seqlens_array(piece_tokens: np.ndarray, row_offsets: np.ndarray) -> pa.ListArray:
    """Each row's piece boundaries, starting at 0: one more entry a row than it has pieces.

    Args:
        piece_tokens: int64 (pieces,).
        row_offsets: int64 (rows + 1,), which pieces are whose.
    """
    rows = len(row_offsets) - 1
    ends = np.concatenate([[0], np.cumsum(piece_tokens)])  # (pieces + 1,)
    row_of_entry = np.repeat(np.arange(rows), np.diff(row_offsets) + 1)
    entry = np.arange(len(piece_tokens) + rows) - row_of_entry  # which of `ends`
    values = ends[entry] - ends[row_offsets[row_of_entry]]
    offsets = row_offsets + np.arange(rows + 1)
    return pa.ListArray.from_arrays(as_offsets(offsets), pa.array(values.astype(np.int32)))


def as_offsets(offsets: np.ndarray) -> pa.Array:
    """Arrow's 32-bit list offsets.

    Raises:
        PlanError: a part too large for them.
    """
    check_entries(int(offsets[-1]), "a part", "lower shards.shard_tokens")
    return pa.array(offsets.astype(np.int32))


def check_entries(count: int, where: str, remedy: str) -> None:
    """Refuse a list column with more entries than 32-bit offsets reach (FORMAT.md, section 8).

    Raises:
        PlanError: there are too many; says what would help.
    """
    if count > MOST_ENTRIES:
        raise PlanError(
            f"{where} would have a list column of {count} entries, at most {MOST_ENTRIES} are "
            f"allowed; {remedy}"
        )


def tail_table(tail: Pieces, segment: int) -> pa.Table:
    """A segment's rows of `tail.parquet`: the stream's end, in stream order."""
    columns = {name: getattr(tail, name) for name in schema.TAIL.names if name != "segment"}
    arrays = {"segment": np.full(len(tail), segment, np.int32)} | columns
    return pa.table(
        {name: pa.array(arrays[name]).cast(schema.TAIL.field(name).type) for name in arrays},
        schema=schema.TAIL,
    )


def read_plan_part(path: Path) -> Steps:
    """A plan part as `Steps`; `doc_tokens` is unknown there and set to `doc_stop`."""
    table = pq.read_table(parquet_source(path))
    lists = {
        name: table.column(name).combine_chunks()
        for name in ("source", "epoch", "doc_id", "doc_start", "doc_stop", "position")
    }
    values = {name: array.flatten().to_numpy().astype(np.int64) for name, array in lists.items()}
    pieces = Pieces(**values, doc_tokens=values["doc_stop"])
    steps = table.column("step").to_numpy()
    slots = table.column("slot").to_numpy()
    return Steps(
        first_step=int(steps[0]),
        num_micro_batches=int(slots.max()) + 1,
        pieces=pieces,
        row_offsets=lists["doc_id"].offsets.to_numpy().astype(np.int64),
        row_workload=table.column("workload").to_numpy(),
    )


def _num_cut(pieces: Pieces) -> int:
    """Documents whose first piece is not the whole of them."""
    return int(((pieces.doc_start == 0) & (pieces.doc_stop < pieces.doc_tokens)).sum())
