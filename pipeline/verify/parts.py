"""A part of the set by itself: its plan, its shard and its CP plans, and what is kept of it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from pipeline.shard.manifest import Manifest
from pipeline.verify.context_parallel import check_cp_part
from pipeline.verify.plan_rows import PlanPart, TailPieces, check_plan_part
from pipeline.verify.ran import PIECE
from pipeline.verify.shard_rows import check_shard_part
from pipeline.verify.stores import RawStore
from pipeline.verify.totals import StepSums, step_sums


@dataclass(frozen=True, slots=True, kw_only=True)
class SetPart:
    """A part that is to be checked; its files are intact.

    Args:
        manifest: of the set (`without_steps`).
        stores: the sources' checked token stores.
        part: its number.
        first_step: the step after the part before.
        records: a file for the records of its pieces; None where nobody wants them.
    """

    manifest: Manifest
    stores: list[RawStore]
    part: int
    first_step: int
    records: Path | None


def without_steps(manifest: Manifest) -> Manifest:
    """The manifest less its columns a step, which no part needs; so it is small to send."""
    nothing = np.empty(0, np.int64)
    return replace(manifest, step_part=nothing, step_targets=nothing)


def check_part(unit: SetPart) -> StepSums:
    """Check all laws that a part can break by itself; its pieces go to `records`.

    Raises:
        VerifyError: the first row that breaks a law.
    """
    manifest, part = unit.manifest, unit.part
    plan = check_plan_part(manifest, unit.stores, part, unit.first_step)
    check_shard_part(manifest, unit.stores, part, plan)
    for cp_size in manifest.cp_sizes:
        check_cp_part(manifest, part, plan, cp_size)
    if unit.records is not None:
        records_of(plan, part, plan.piece_row).tofile(unit.records)
    return step_sums(plan, len(manifest.sources))


def take_records(path: Path) -> np.ndarray:
    """The records of a part's pieces; their file is removed."""
    records = np.fromfile(path, PIECE)
    path.unlink()
    return records


def records_of(pieces: PlanPart | TailPieces, part: int, row: np.ndarray) -> np.ndarray:
    """Pieces as records of `PIECE`."""
    records = np.empty(len(row), PIECE)
    records["position"], records["doc_id"] = pieces.position, pieces.doc_id
    records["start"], records["stop"] = pieces.doc_start, pieces.doc_stop
    records["source"], records["epoch"] = pieces.source, pieces.epoch
    records["part"], records["row"] = part, row
    return records
