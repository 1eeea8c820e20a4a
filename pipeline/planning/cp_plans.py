"""Plan parts to context-parallel plan parts: the same rows, cut over the CP ranks."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from packer.context_parallel import CPPlan, plan_context_parallel
from packer.plan import Steps
from packer.workload import Workload
from pipeline.config import fingerprint
from pipeline.planning.plan_parts import as_offsets, read_plan_part
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
    workload: Workload

    def key(self, plan_key: str) -> str:
        """What these plans depend on, as 64 hex digits."""
        return fingerprint(
            {
                "plan": plan_key,
                "cp_size": self.cp_size,
                "strategy": self.strategy,
                "workload": self.workload.as_dict(),
            }
        )


def write_cp_part(job: CPJob, part: int) -> FileReceipt:
    """Plan one part's micro-batches over `cp_size` ranks and write `cp=N/`'s part."""
    root, name = Path(job.root), f"{schema.part_name(part)}.parquet"
    steps = read_plan_part(root / "plan" / name)
    plan = plan_context_parallel(
        steps.pieces.tokens,
        steps.row_offsets,
        cp_size=job.cp_size,
        strategy=job.strategy,
        workload=job.workload,
    )
    return write_part(cp_table(steps, plan), Path(job.out), f"cp={job.cp_size}/{name}")


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
