"""CP plans: who made a row, what its ranks are said to take, and that the best candidate won.

Predictions are worked out anew from the chunks and the manifest; of candidates that were not
chosen nothing but their figures is there.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from packer.context_parallel import CPOptions, CPPlan
from packer.context_parallel.work import rank_work
from pipeline.built import workload_of
from pipeline.planning.cp_options import options_of
from pipeline.shard.manifest import Manifest
from pipeline.verify.part import PartTable
from pipeline.verify.plan_rows import PlanPart
from pipeline.verify.result import VerifyError


def check_predictions(manifest: Manifest, table: PartTable, plan: PlanPart, cp_size: int) -> None:
    """Check `strategy`, `predicted` and `considered` of a part whose chunks are sound.

    Args:
        manifest: of the set.
        table: a part of a CP plan; `predicted` has an entry a rank in each row.
        plan: its part of the plan.
        cp_size: its degree.

    Raises:
        VerifyError: the first row that breaks a law, or a degree that is described badly.
    """
    entry = manifest.cp[str(cp_size)]
    options = _options(manifest, cp_size)
    predicted = table.integers("predicted").reshape(-1, cp_size)
    _check_work(manifest, table, plan, predicted, options)
    made_by = np.array(table.texts("strategy"), dtype=np.object_)
    candidates = tuple(entry.get("candidates", ()))
    table.require(
        np.diff(table.offsets("considered")) == len(candidates),
        lambda _: (
            f"'considered' must have {len(candidates)} entries, one a candidate of the degree, "
            "in manifest.json"
        ),
    )
    if not candidates:
        table.require(
            made_by == entry["strategy"],
            lambda row: f"strategy is {made_by[row]!r}, the manifest says {entry['strategy']!r}",
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


def _check_work(
    manifest: Manifest,
    table: PartTable,
    plan: PlanPart,
    predicted: np.ndarray,
    options: CPOptions,
) -> None:
    chunks = CPPlan(
        cp_size=predicted.shape[1],
        strategy=("",) * table.num_rows,
        row_offsets=table.offsets("cp_rank"),
        cp_rank=table.integers("cp_rank").astype(np.int32),
        piece=table.integers("piece").astype(np.int32),
        start=table.integers("start"),
        stop=table.integers("stop"),
        predicted=predicted,
        considered=np.zeros((table.num_rows, 0), np.int64),
    )
    work = rank_work(chunks, plan.piece_tokens, plan.offsets, workload_of(manifest), options).total
    table.require(
        np.all(work == predicted, axis=1),
        lambda row: f"predicted is {predicted[row].tolist()}; its chunks make {work[row].tolist()}",
    )


@lru_cache(maxsize=8)
def _options(manifest: Manifest, cp_size: int) -> CPOptions:
    entry: dict[str, Any] = manifest.cp[str(cp_size)]
    try:
        if not isinstance(entry["strategy"], str):
            raise TypeError("strategy must be a string")
        return options_of(entry, workload_of(manifest))
    except (KeyError, TypeError, ValueError) as error:
        raise VerifyError(
            f"cp.{cp_size}: {error}", path=manifest.directory / "manifest.json"
        ) from error
