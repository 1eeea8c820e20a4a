"""What a set is worth, computed from its files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from packer.packing.packer import PackingError
from packer.schedule import Coupling, Schedule
from packer.stream import Stream
from packer.workload import Workload
from pipeline.balance import (
    cp_parts,
    measure_binding,
    measure_cp,
    measure_plan,
    measure_policy,
)
from pipeline.built import check_parts, config_of, stores_of, workload_of
from pipeline.chain_balance import combined
from pipeline.config import ConfigError
from pipeline.planning.bounds import packing_config
from pipeline.planning.mixing import replay
from pipeline.planning.pool import pool_before
from pipeline.settings.cluster import ParallelSettings, schedule_of
from pipeline.shard.manifest import Manifest, load_manifest
from pipeline.shard.segment import Segment
from pipeline.shares import measure_sources

BASELINES = ("concat", "reorder")
"""Policies that a report puts beside the plan: no displacement at all, and none but what does not
fit."""


def report(
    root: Path,
    *,
    dp_size: int | None = None,
    pp_size: int | None = None,
    virtual_stages: int | None = None,
    coupling: Coupling | None = None,
) -> dict[str, Any]:
    """The figures of `steelyard report`, in JSON types.

    Args:
        root: the set's directory.
        dp_size: data-parallel ranks that times are computed for; as configured where not given.
        pp_size: pipeline-parallel ranks, likewise.
        virtual_stages: model chunks of one, likewise.
        coupling: when data-parallel ranks wait for each other, likewise.

    With another number of stages than configured they are equal, whatever the configured shares.

    Returns:
        Totals of the manifest; the chain's balance; `cp` by degree, the smallest degree's figures
        at the top level too; `segments`, a dict each. The fields of a segment, at the top level too
        where there is only one: those of its bounds; its balance; `sources`, a dict each
        (`pipeline.shares`); `binding`, bounds in the way of a better balance; `baselines` by
        policy, None for one that has no plan within the bounds.

    Raises:
        ConfigError: a schedule that cannot be, or that cannot run the micro-batches of a step.
        FormatError: `root` holds no finished set.
    """
    manifest = load_manifest(root)
    given = {
        "dp_size": dp_size,
        "pp_size": pp_size,
        "virtual_stages": virtual_stages,
        "coupling": coupling,
    }
    changes = {name: value for name, value in given.items() if value is not None}
    schedules = [
        _schedule(config_of(manifest, number).parallel, changes, segment.num_micro_batches)
        for number, segment in enumerate(manifest.segments)
    ]
    check_parts(manifest, ("plan/", *(f"cp={size}/" for size in manifest.cp_sizes)))
    by_degree = {
        degree: {
            "strategy": plan["strategy"],
            "kv_exchange": plan["kv_exchange"],
            **measure_cp(
                cp_parts(root, range(manifest.num_parts), int(degree)),
                int(degree),
                candidates=plan.get("candidates", ()),
            ),
        }
        for degree, plan in sorted(manifest.cp.items(), key=lambda item: int(item[0]))
    }
    smallest = by_degree[min(by_degree, key=int)] if by_degree else {}
    stores = stores_of(manifest)
    balances, segments = [], []
    for number, schedule in enumerate(schedules):
        segment = manifest.segments[number]
        balances.append(measure_plan(root, segment, schedule, manifest.micro_batch_order))
        with TemporaryDirectory(prefix="steelyard-report-") as scratch:
            pool = pool_before(manifest, number, stores, Path(scratch))
            stream = replay(segment, stores, pool, target_tokens=segment.target_tokens)
            segments.append(balances[-1] | _segment_figures(manifest, number, stream, schedule))
    return {
        **manifest.totals,
        **combined(balances),
        **(segments[0] if len(segments) == 1 else {}),
        **{name: smallest[name] for name in ("cp_attention", "cp_tokens") if smallest},
        "cp": by_degree,
        "segments": segments,
    }


def _segment_figures(
    manifest: Manifest, number: int, stream: Stream, schedule: Schedule
) -> dict[str, Any]:
    """The figures of a segment, but for its balance."""
    root, segment = manifest.directory, manifest.segments[number]
    config, workload = config_of(manifest, number), workload_of(manifest)
    order = config.parallel.micro_batch_order  # each policy with its best, where that is asked
    return {
        "policy": segment.policy,
        "thresholds": list(segment.thresholds),
        "intake_tokens": segment.intake_tokens,
        "context_length": segment.context_length,
        "max_tokens": segment.max_tokens,
        "first_step": segment.first_step,
        "cut": segment.cut,
        **measure_binding(
            root,
            segment,
            replace(packing_config(config), intake_tokens=segment.intake_tokens),
        ),
        "sources": measure_sources(root, segment, manifest.sources, stream),
        "baselines": {
            policy: _baseline(policy, stream, segment, workload, schedule, order)
            for policy in BASELINES
        },
    }


def _schedule(settings: ParallelSettings, changes: dict[str, Any], num: int) -> Schedule:
    """The schedule as configured but for the changes."""
    changed = settings.model_copy(update=changes)
    if changed.num_stages != settings.num_stages:
        changed = changed.model_copy(update={"stage_shares": ()})
    try:
        schedule = schedule_of(changed)
        schedule.num_per_rank(num)
    except ValueError as error:
        raise ConfigError(f"report: {error}") from error
    return schedule


def _baseline(
    policy: str,
    stream: Stream,
    segment: Segment,
    workload: Workload,
    schedule: Schedule,
    order: str,
) -> dict[str, Any] | None:
    try:
        return measure_policy(policy, stream, segment, workload, schedule, order)
    except PackingError:
        return None
