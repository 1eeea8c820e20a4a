"""Plan parts to context-parallel plan parts: the same rows, cut over the CP ranks."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from packer.context_parallel import CPOptions, CPPlan, plan_context_parallel
from packer.plan import Steps
from packer.workload import Workload
from pipeline.config import fingerprint
from pipeline.files.url_path import as_path
from pipeline.planning.cp_options import PADDED, cp_options, describe_options
from pipeline.planning.mixing import PlanError
from pipeline.planning.plan_parts import as_offsets, read_plan_part
from pipeline.settings.context_parallel import ContextParallelSettings
from pipeline.shard import schema
from pipeline.shard.writer import FileReceipt, write_part


@dataclass(frozen=True, slots=True, kw_only=True)
class CPJob:
    """One CP degree of one set."""

    root: str
    """The set's directory, with the plan."""
    out: str
    """Where `cp=N/` goes: the same, or where parts wait to be published."""
    cp_size: int
    strategy: str
    options: CPOptions
    workload: Workload

    @property
    def fields(self) -> dict[str, Any]:
        """How the manifest describes the degree, but for what its plans are worth."""
        return describe_options(self.strategy, self.options, self.workload, self.cp_size)

    def key(self, plan_key: str) -> str:
        """What these plans depend on, as 64 hex digits."""
        return fingerprint(
            {
                "plan": plan_key,
                "cp_size": self.cp_size,
                "workload": self.workload.as_dict(),
                **self.fields,
            }
        )


def cp_jobs(
    settings: ContextParallelSettings,
    *,
    root: Path,
    out: Path,
    max_tokens: int,
    workload: Workload,
) -> list[CPJob]:
    """A job for each degree of the settings.

    Args:
        settings: degrees and strategy.
        root: the set's directory, with the plan.
        out: where `cp=N/` goes.
        max_tokens: S_max.
        workload: the set's.
    """
    return [
        CPJob(
            root=str(root),
            out=str(out),
            cp_size=cp_size,
            strategy=settings.strategy,
            options=cp_options(settings, max_tokens),
            workload=workload,
        )
        for cp_size in settings.sizes
    ]


def check_padding(job: CPJob, parts: Iterable[int]) -> None:
    """Refuse padding that makes micro-batches of these parts too large, before it is written.

    Raises:
        PlanError: how many exceed S_max, and what would help.
    """
    if job.strategy != PADDED:
        return
    multiple, bound = job.fields["pad_multiple"], job.options.max_tokens
    rows = over = largest = 0
    for part in parts:
        steps = read_plan_part(as_path(job.root) / "plan" / f"{schema.part_name(part)}.parquet")
        padded = -(-steps.pieces.tokens // multiple) * multiple
        row_tokens = np.add.reduceat(padded, steps.row_offsets[:-1])
        rows += len(row_tokens)
        over += int(np.count_nonzero(row_tokens > bound))
        largest = max(largest, int(row_tokens.max()))
    if over:
        raise PlanError(
            f"cp {job.cp_size}: {over} of {rows} micro-batches exceed max_tokens {bound} once "
            f"their pieces are padded to multiples of {multiple}; the largest has {largest}. "
            "Raise packing.max_tokens, lower packing.context_length or packing.max_pieces, or use "
            "a strategy without padding"
        )


def write_cp_part(job: CPJob, part: int) -> FileReceipt:
    """Plan one part's micro-batches over `cp_size` ranks and write `cp=N/`'s part.

    Raises:
        PlanError: work that integers do not hold.
    """
    root, name = as_path(job.root), f"{schema.part_name(part)}.parquet"
    steps = read_plan_part(root / "plan" / name)
    try:
        plan = plan_context_parallel(
            steps.pieces.tokens,
            steps.row_offsets,
            cp_size=job.cp_size,
            strategy=job.strategy,
            workload=job.workload,
            options=job.options,
        )
    except ValueError as error:
        raise PlanError(f"cp {job.cp_size}, plan part {part}: {error}") from error
    return write_part(cp_table(steps, plan), as_path(job.out), f"cp={job.cp_size}/{name}")


def cp_table(steps: Steps, plan: CPPlan) -> pa.Table:
    """The rows of a CP plan part (FORMAT.md section 4)."""
    rows = np.arange(steps.num_rows)
    offsets = as_offsets(plan.row_offsets)

    def ragged(values: np.ndarray) -> pa.ListArray:
        return pa.ListArray.from_arrays(offsets, pa.array(values.astype(np.int32)))

    def table(values: np.ndarray) -> pa.ListArray:
        ends = np.arange(steps.num_rows + 1) * values.shape[1]
        return pa.ListArray.from_arrays(as_offsets(ends), pa.array(values.reshape(-1)))

    return pa.table(
        {
            "step": steps.first_step + rows // steps.num_micro_batches,
            "slot": (rows % steps.num_micro_batches).astype(np.int32),
            "cp_rank": ragged(plan.cp_rank),
            "piece": ragged(plan.piece),
            "start": ragged(plan.start),
            "stop": ragged(plan.stop),
            "strategy": pa.array(plan.strategy),
            "predicted": table(plan.predicted),
            "considered": table(plan.considered),
        },
        schema=schema.CP_PLAN,
    )
