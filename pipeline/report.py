"""What a set is worth, computed from its files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from packer.workload import Workload
from pipeline.balance import measure_cp, measure_plan, measure_policy
from pipeline.config import ConfigError, ParallelSettings, RunConfig, parse_config
from pipeline.planning import open_stream
from pipeline.publish import read_receipts
from pipeline.shard.digests import sha256_file
from pipeline.shard.manifest import Manifest, load_manifest
from pipeline.shard.tables import FormatError
from pipeline.shard.token_store import TokenStore

BASELINES = ("concat", "reorder")
"""Policies that a report puts beside the plan: no displacement at all, and none but what does not
fit."""


def report(root: Path, *, parallel: ParallelSettings | None = None) -> dict[str, Any]:
    """The figures of `steelyard report`, in JSON types.

    Args:
        root: the set's directory.
        parallel: the cluster that times are computed for; the configured one where not given.

    Returns:
        Totals of the manifest; the plan's balance of the first segment at the top level; `cp` by
        degree, the smallest degree's figures at the top level too; `baselines` by policy.

    Raises:
        ConfigError: `dp_size` does not divide the micro-batches of a step.
        FormatError: `root` holds no finished set.
    """
    manifest = load_manifest(root)
    config = config_of(manifest)
    workload = workload_of(manifest)
    cluster = parallel or config.parallel
    segment = manifest.segments[0]
    if segment.num_micro_batches % cluster.dp_size:
        raise ConfigError(
            f"dp_size {cluster.dp_size} does not divide the {segment.num_micro_batches} "
            "micro-batches of a step; give a divisor"
        )
    check_parts(root, ("plan/", *(f"cp={size}/" for size in manifest.cp_sizes)))
    by_degree = {
        degree: {"strategy": plan["strategy"], **measure_cp(root, manifest.segments, int(degree))}
        for degree, plan in manifest.cp.items()
    }
    smallest = by_degree[min(by_degree, key=int)] if by_degree else {}
    stream = open_stream(stores_of(manifest), config)
    return {
        **manifest.totals,
        "policy": segment.policy,
        "thresholds": list(segment.thresholds),
        "intake_tokens": segment.intake_tokens,
        "context_length": segment.context_length,
        "max_tokens": segment.max_tokens,
        "dp_size": cluster.dp_size,
        "pp_size": cluster.pp_size,
        **measure_plan(root, segment, workload, cluster),
        **{name: smallest[name] for name in ("cp_attention", "cp_tokens") if smallest},
        "cp": by_degree,
        "baselines": {
            policy: measure_policy(policy, stream, segment, workload, cluster)
            for policy in BASELINES
        },
    }


def check_parts(root: Path, folders: tuple[str, ...]) -> None:
    """Compare the parts in `folders` with their digests.

    Raises:
        FormatError: one is damaged.
    """
    for receipt in read_receipts(root):
        if receipt.path.startswith(folders) and sha256_file(root / receipt.path) != receipt.sha256:
            raise FormatError(
                "is damaged: its SHA-256 is not that of files.parquet; steelyard verify names the "
                "row group",
                path=root / receipt.path,
            )


def config_of(manifest: Manifest) -> RunConfig:
    """The resolved configuration that a set was built with."""
    return parse_config(dict(manifest.config), name="manifest.json")


def workload_of(manifest: Manifest) -> Workload:
    """The workload model that a set was planned with."""
    return Workload(crossover=manifest.workload.crossover, constant=manifest.workload.constant)


def stores_of(manifest: Manifest) -> list[TokenStore]:
    """The token stores of a set, in source order, their tables checked."""
    stores = [TokenStore(manifest.store_path(index)) for index in range(len(manifest.sources))]
    for store in stores:
        store.check_tables()
    return stores
