"""What a set is worth, measured from its files, and what other policies make of its stream."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from packer.context_parallel import CPPlan
from packer.context_parallel.measures import CPMeter
from packer.measures import BalanceMeter
from packer.packing.binding import BindingMeter
from packer.packing.config import PackingConfig
from packer.packing.packer import Packer
from packer.packing.search.objective import outside_bands
from packer.packing.whole import with_lower_intake
from packer.schedule import Schedule
from packer.stream import Stream
from packer.workload import Workload
from pipeline.files.contents import parquet_source
from pipeline.planning.cp_plans import CPJob
from pipeline.planning.plan_parts import read_plan_part
from pipeline.shard import schema
from pipeline.shard.manifest import Segment
from pipeline.shard.tables import FormatError


def measure_plan(
    root: Path,
    segment: Segment,
    schedule: Schedule,
    order: str,
) -> dict[str, Any]:
    """The balance of a segment's plan parts (measures of `packer.measures.Balance`).

    Args:
        root: the set's directory.
        segment: of its chain.
        schedule: what times are computed for.
        order: rule by which ranks run their micro-batches, or "auto" for the one of least time.

    Raises:
        FormatError: a part whose steps are not as large as the segment says.
    """
    meter = BalanceMeter(
        bounds_of(segment),
        schedule=schedule,
        order=order,
        num_sources=_num_sources(segment),
        first_step=segment.first_step,
    )
    for part in range(segment.first_part, segment.stop_part):
        path = root / "plan" / f"{schema.part_name(part)}.parquet"
        steps = read_plan_part(path)
        if steps.num_micro_batches != segment.num_micro_batches:
            raise FormatError(
                f"has steps of {steps.num_micro_batches} micro-batches, its segment of "
                f"{segment.num_micro_batches}",
                path=path,
            )
        meter.add(steps)
    return meter.result().as_dict()


def measure_binding(root: Path, segment: Segment, bounds: PackingConfig) -> dict[str, Any]:
    """Which bounds are in the way of a segment's balance, and tokens by which it leaves its bands.

    See `packer.packing.binding`; times are those of the cluster that it was planned for.

    Args:
        root: the set's directory.
        segment: of its chain.
        bounds: that it was packed under, with the objective and the bands.
    """
    meter, outside = BindingMeter(bounds, segment.policy), 0
    for part in range(segment.first_part, segment.stop_part):
        steps = read_plan_part(root / "plan" / f"{schema.part_name(part)}.parquet")
        steps = replace(steps, first_step=steps.first_step - segment.first_step)
        meter.add(steps)
        outside += outside_bands(steps, bounds)
    return {
        "binding": meter.binding(),
        "binding_shares": meter.shares(),
        "outside_bands": outside,
    }


def measure_policy(
    policy: str,
    stream: Stream,
    segment: Segment,
    workload: Workload,
    schedule: Schedule,
    order: str,
) -> dict[str, Any]:
    """The balance another policy would reach on the same stream under the same bounds."""

    def attempt(bounds: PackingConfig) -> dict[str, Any]:
        meter = BalanceMeter(
            bounds, schedule=schedule, order=order, num_sources=_num_sources(segment)
        )
        for steps in Packer(policy, bounds, workload).steps_of(stream.chunks()):
            meter.add(steps)
        return meter.result().as_dict()

    return with_lower_intake(replace(bounds_of(segment), intake_tokens=0), attempt)


def cp_parts(
    root: Path, parts: Iterable[int], cp_size: int, out: Path | None = None
) -> list[tuple[Path, Path]]:
    """The files of some plan parts, and of a degree's plan for them.

    Args:
        root: where `plan/` is.
        parts: their numbers.
        cp_size: the degree.
        out: where `cp=N/` is, if not in `root`.
    """
    names = [f"{schema.part_name(part)}.parquet" for part in parts]
    return [(root / "plan" / name, (out or root) / f"cp={cp_size}" / name) for name in names]


def measure_cp(
    parts: Iterable[tuple[Path, Path]], cp_size: int, *, candidates: Sequence[str] = ()
) -> dict[str, Any]:
    """The balance of one CP degree's plans over a chain (`packer.context_parallel.measures`).

    Args:
        parts: of the plan, and of the degree, see `cp_parts`.
        cp_size: the degree.
        candidates: strategies from which one was chosen for each micro-batch.

    Returns:
        The measures, and where there are candidates `chosen`: micro-batches that each made.
    """
    meter, chosen = CPMeter(), Counter[str]()
    for plan_path, cp_path in parts:
        steps, plan = read_plan_part(plan_path), read_cp_part(cp_path, cp_size)
        meter.add(plan, steps.pieces.tokens, steps.row_offsets)
        chosen.update(plan.strategy)
    measures: dict[str, Any] = meter.result().as_dict()
    if candidates:
        measures["chosen"] = {name: chosen[name] for name in candidates}
    return measures


def describe_cp(job: CPJob, parts: Iterable[tuple[Path, Path]]) -> dict[str, Any]:
    """The entry of a planned degree in the manifest's `cp`; `parts` as in `measure_cp`."""
    fields = job.fields
    return fields | measure_cp(parts, job.cp_size, candidates=fields.get("candidates", ()))


def _num_sources(segment: Segment) -> int:
    """Sources of the chain up to the last one of the segment."""
    return 1 + max(entry.source for entry in segment.sources)


def read_cp_part(path: Path, cp_size: int) -> CPPlan:
    """A CP plan part as `CPPlan`."""
    table = pq.read_table(parquet_source(path))
    lists = {
        name: table.column(name).combine_chunks() for name in ("cp_rank", "piece", "start", "stop")
    }
    # Copies are writable, like a plan just made, for which kernels are compiled.
    chunks = {name: array.flatten().to_numpy().copy() for name, array in lists.items()}
    work = {
        name: table.column(name).combine_chunks().flatten().to_numpy().copy()
        for name in ("predicted", "considered")
    }
    return CPPlan(
        cp_size=cp_size,
        strategy=tuple(table.column("strategy").to_pylist()),
        row_offsets=lists["piece"].offsets.to_numpy().astype(np.int64),
        cp_rank=chunks["cp_rank"],
        piece=chunks["piece"],
        start=chunks["start"].astype(np.int64),
        stop=chunks["stop"].astype(np.int64),
        predicted=work["predicted"].reshape(-1, cp_size),
        considered=work["considered"].reshape(table.num_rows, -1),
    )


def bounds_of(segment: Segment) -> PackingConfig:
    """The bounds a segment was packed under."""
    return PackingConfig(
        num_micro_batches=segment.num_micro_batches,
        context_length=segment.context_length,
        max_tokens=segment.max_tokens,
        intake_tokens=segment.intake_tokens,
        max_pieces=segment.max_pieces,
        thresholds=segment.thresholds,
        max_displacement=segment.max_displacement,
    )
