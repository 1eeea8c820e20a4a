"""CP plans: who made a row, what its ranks are said to take, and that the best candidate won.

Of candidates that were not chosen nothing but their figures is there.
"""

from __future__ import annotations

import numpy as np

from pipeline.verify.cp_work import ChunkList, Degree, work_of
from pipeline.verify.part import PartTable
from pipeline.verify.plan_rows import PlanPart


def check_predictions(table: PartTable, plan: PlanPart, chunks: ChunkList, degree: Degree) -> None:
    """Check `strategy`, `predicted` and `considered` of a part whose chunks are sound.

    Args:
        table: a part of a CP plan; `predicted` has an entry a rank in each row.
        plan: its part of the plan.
        chunks: of the part.
        degree: how it was planned.

    Raises:
        VerifyError: the first row that breaks a law.
    """
    predicted = table.integers("predicted").reshape(-1, degree.cp_size)
    work = work_of(chunks, plan.piece_tokens, plan.offsets, degree)
    table.require(
        np.all(work == predicted, axis=1),
        lambda row: f"predicted is {predicted[row].tolist()}; its chunks make {work[row].tolist()}",
    )
    candidates = degree.candidates
    table.require(
        np.diff(table.offsets("considered")) == len(candidates),
        lambda _: (
            f"'considered' must have {len(candidates)} entries, one a candidate of the degree, "
            "in manifest.json"
        ),
    )
    made_by = np.array(table.texts("strategy"), dtype=np.object_)
    if not candidates:
        table.require(
            made_by == degree.strategy,
            lambda row: f"strategy is {made_by[row]!r}, the manifest says {degree.strategy!r}",
        )
        return
    considered = table.integers("considered").reshape(-1, len(candidates))
    best = np.argmin(considered, axis=1)
    table.require(
        made_by == np.array(candidates, dtype=np.object_)[best],
        lambda row: (
            f"strategy is {made_by[row]!r}; of {list(candidates)}, considered at "
            f"{considered[row].tolist()}, it must be the first of the least, "
            f"{candidates[best[row]]!r}"
        ),
    )
    slowest, least = predicted.max(axis=1), considered.min(axis=1)
    table.require(
        slowest == least,
        lambda row: f"the slowest rank is predicted {slowest[row]}, considered was {least[row]}",
    )
