"""The plan's rows: their order, their bounds, and what is computed from their pieces."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from pipeline.shard import schema
from pipeline.shard.manifest import Manifest, Segment
from pipeline.verify.part import PartTable
from pipeline.verify.result import VerifyError
from pipeline.verify.selection import taken_tokens
from pipeline.verify.stores import RawStore
from pipeline.verify.workloads import piece_workloads

_PIECE_COLUMNS = ("source", "epoch", "doc_id", "doc_start", "doc_stop", "position")


@dataclass(frozen=True)
class PlanPart:
    """A part of the plan, flat: arrays with one entry a row or one entry a piece, int64."""

    table: PartTable
    segment: Segment
    offsets: np.ndarray
    """Where each row's pieces begin, (rows + 1,)."""
    step: np.ndarray
    cu_seqlens: np.ndarray
    source: np.ndarray
    epoch: np.ndarray
    doc_id: np.ndarray
    doc_start: np.ndarray
    doc_stop: np.ndarray
    position: np.ndarray
    num_targets: np.ndarray
    workload: np.ndarray
    is_end: np.ndarray
    """Whether each piece ends where its document does, or where that was truncated."""

    @cached_property
    def piece_tokens(self) -> np.ndarray:
        return self.doc_stop - self.doc_start

    @cached_property
    def piece_row(self) -> np.ndarray:
        """The row of each piece."""
        return np.repeat(np.arange(self.num_rows), np.diff(self.offsets))

    @property
    def num_rows(self) -> int:
        return len(self.step)

    def row_sums(self, pieces: np.ndarray) -> np.ndarray:
        """Sums over each row's pieces, (rows,)."""
        return np.add.reduceat(pieces, self.offsets[:-1])


def check_plan_part(
    manifest: Manifest, stores: list[RawStore], part: int, first_step: int
) -> PlanPart:
    """Check all laws that a part of the plan can break by itself.

    Args:
        manifest: of the set.
        stores: the sources' checked token stores.
        part: number of the part.
        first_step: the step after the part before.

    Raises:
        VerifyError: the first row that breaks a law.
    """
    number = next(n for n, s in enumerate(manifest.segments) if part < s.stop_part)
    segment = manifest.segments[number]
    table = PartTable(manifest.plan_path(part), schema.PLAN)
    _check_order(table, segment, first_step)
    plan = _flatten(table, segment)
    _check_pieces(plan, manifest, number, stores)
    for index in np.unique(plan.source).tolist():
        mine = plan.source == index
        length = stores[index].lengths[plan.doc_id[mine]].astype(np.int64)
        plan.is_end[mine] = plan.doc_stop[mine] >= np.minimum(length, segment.most_taken(index))
    _check_bounds(plan)
    _check_sums(plan, manifest)
    _check_slots(plan)
    return plan


def _check_order(table: PartTable, segment: Segment, first_step: int) -> None:
    """Steps ascending without a gap, slots 0 .. N-1 in each, only steps of the segment."""
    slots, rows = segment.num_micro_batches, np.arange(table.num_rows)
    if not table.num_rows or table.num_rows % slots:
        raise VerifyError(
            f"{table.num_rows} rows do not make whole steps of {slots} micro-batches",
            path=table.path,
        )
    step, slot = first_step + rows // slots, rows % slots
    table.require(
        (table.plain("step") == step) & (table.plain("slot") == slot),
        lambda row: f"must be step {step[row]}, slot {slot[row]}",
    )
    table.require(
        step < segment.stop_step, lambda _: f"the segment ends before step {segment.stop_step}"
    )


def _flatten(table: PartTable, segment: Segment) -> PlanPart:
    """Flat arrays, after the lists of each row were found to agree in length."""
    offsets = table.offsets("doc_id")
    for name in _PIECE_COLUMNS:
        table.require(
            np.diff(table.offsets(name)) == np.diff(offsets),
            lambda row, name=name: f"{name!r} and 'doc_id' have different lengths",
        )
    table.require(np.diff(offsets) > 0, lambda _: "holds no piece; no micro-batch may be empty")
    cu_offsets, cu_seqlens = table.offsets("cu_seqlens"), table.integers("cu_seqlens")
    table.require(
        np.diff(cu_offsets) == np.diff(offsets) + 1,
        lambda row: "'cu_seqlens' must have one entry more than there are pieces",
    )
    table.require(cu_seqlens[cu_offsets[:-1]] == 0, lambda _: "'cu_seqlens' must start at 0")
    columns = {name: table.integers(name) for name in _PIECE_COLUMNS}
    plan = PlanPart(
        table=table,
        segment=segment,
        offsets=offsets,
        cu_seqlens=cu_seqlens,
        is_end=np.zeros(offsets[-1], np.bool_),
        **columns,
        **{name: table.plain(name) for name in ("step", "num_targets", "workload")},
    )
    inner = np.ones(len(cu_seqlens), np.bool_)
    inner[cu_offsets[:-1]] = False  # differences across two rows are no piece
    lengths = np.diff(cu_seqlens, prepend=0)[inner]
    table.require_each(
        lengths == plan.piece_tokens,
        offsets,
        lambda i: f"{lengths[i]} tokens by 'cu_seqlens', {plan.piece_tokens[i]} by its document",
    )
    return plan


def _check_pieces(plan: PlanPart, manifest: Manifest, number: int, stores: list[RawStore]) -> None:
    """Every piece is a non-empty part of a document that exists, in an epoch that may be."""
    offender = first_bad_piece(plan, manifest, number, stores)
    if offender is not None:
        good = np.ones(len(plan.doc_id), np.bool_)
        good[offender[0]] = False
        plan.table.require_each(good, plan.offsets, lambda _: offender[1])


def first_bad_piece(
    pieces: PlanPart | TailPieces, manifest: Manifest, number: int, stores: list[RawStore]
) -> tuple[int, str] | None:
    """The first piece that is no part of a document of the segment, and what is wrong with it.

    Where earlier segments have the source, policies do not hold for documents that they began:
    `Conservation` tells those apart.
    """
    segment = manifest.segments[number]
    shared = {entry.source for earlier in manifest.segments[:number] for entry in earlier.sources}
    epochs = np.zeros(len(stores), np.int64)
    for entry in segment.sources:
        epochs[entry.source] = math.ceil(entry.max_epochs)
    known = (pieces.source >= 0) & (pieces.source < len(stores))
    length = np.full(len(pieces.source), -1, np.int64)  # what is taken of each document
    for entry in segment.sources:
        store = stores[entry.source]
        mine = (pieces.source == entry.source) & (pieces.doc_id >= 0)
        mine &= pieces.doc_id < store.documents
        found = store.lengths[pieces.doc_id[mine]]
        if entry.source in shared:
            length[mine] = found
        else:
            length[mine] = taken_tokens(segment, entry.source, found)
    limit = epochs[np.where(known, pieces.source, 0)]
    laws = (
        (known & (limit > 0), "its source is not one of the segment's"),
        ((pieces.epoch >= 0) & (pieces.epoch < limit), "its epoch is not below max_epochs"),
        (length >= 0, "its document is not in the token store"),
        (
            length != 0,
            "its document is one that min_tokens or longer_than_context of its source leaves out",
        ),
        (
            (pieces.doc_start >= 0) & (pieces.doc_stop <= length),
            "it reaches over its document, or over what is taken of it",
        ),
        (pieces.doc_start < pieces.doc_stop, "it is empty"),
        (
            pieces.doc_stop - pieces.doc_start <= segment.context_length,
            f"it is longer than the context length {segment.context_length}",
        ),
        (
            (pieces.position >= 0)
            & (pieces.position <= segment.stream_tokens - (pieces.doc_stop - pieces.doc_start)),
            f"its position is not within the stream's {segment.stream_tokens} tokens",
        ),
    )
    found = [(int(np.argmin(good)), message) for good, message in laws if not good.all()]
    return min(found, key=lambda offence: offence[0]) if found else None


@dataclass(frozen=True)
class TailPieces:
    """Pieces of tail.parquet, as `first_bad_piece` takes them."""

    source: np.ndarray
    epoch: np.ndarray
    doc_id: np.ndarray
    doc_start: np.ndarray
    doc_stop: np.ndarray
    position: np.ndarray


def _check_bounds(plan: PlanPart) -> None:
    table, segment = plan.table, plan.segment
    tokens, pieces = plan.row_sums(plan.piece_tokens), np.diff(plan.offsets)
    table.require(
        tokens <= segment.max_tokens,
        lambda row: f"{tokens[row]} tokens, at most {segment.max_tokens} are allowed",
    )
    if segment.max_pieces:
        table.require(
            pieces <= segment.max_pieces,
            lambda row: f"{pieces[row]} pieces, at most {segment.max_pieces} are allowed",
        )
    later = np.diff(plan.position, prepend=-1) > 0
    later[plan.offsets[:-1]] = True
    table.require_each(later, plan.offsets, lambda _: "positions must ascend within a row")
    arrival = segment.first_step + plan.position // segment.intake_tokens
    displacement = np.abs(plan.step[plan.piece_row] - arrival)
    table.require_each(
        displacement <= segment.max_displacement,
        plan.offsets,
        lambda i: (
            f"arrives in step {arrival[i]}, a displacement of {displacement[i]}; at most "
            f"{segment.max_displacement} is allowed"
        ),
    )


def _check_sums(plan: PlanPart, manifest: Manifest) -> None:
    """num_targets and workload are what the pieces give."""
    targets = plan.row_sums(plan.piece_tokens - plan.is_end)
    plan.table.require(
        plan.num_targets == targets,
        lambda row: f"num_targets is {plan.num_targets[row]}, its pieces have {targets[row]}",
    )
    work = piece_workloads(manifest, plan.piece_tokens)
    total = plan.row_sums(work) + manifest.workload.constant
    plan.table.require(
        plan.workload == total,
        lambda row: f"workload is {plan.workload[row]}, its pieces give {total[row]}",
    )


def _check_slots(plan: PlanPart) -> None:
    """Within a step workload does not increase; ties stand by first position."""
    slots = plan.segment.num_micro_batches
    first = plan.position[plan.offsets[:-1]]
    more = np.diff(plan.workload, prepend=plan.workload[:1])
    in_order = (more < 0) | ((more == 0) & (np.diff(first, prepend=-1) > 0))
    in_order[::slots] = True
    plan.table.require(
        in_order,
        lambda row: "slots of a step must not increase in workload, ties by first position",
    )
