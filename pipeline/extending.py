"""What a chain's segments share, and what a manifest says once a segment is added.

One vocabulary, one workload model, one layout of shards, one order of micro-batches and one CP plan
a degree serve a whole chain. What the configuration of a new segment leaves out of these is the
chain's; what it asks for must be what the chain has.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from shlex import quote
from typing import Any, NoReturn

from packer.orders import AUTO
from pipeline.built import config_of, workload_of
from pipeline.chain_balance import combined
from pipeline.config import ConfigError, RunConfig
from pipeline.config_file import override, parse_config, read_document
from pipeline.describe import config_entry, source_entry
from pipeline.planning.chain import chain_key, plan_keys
from pipeline.planning.cp_options import cp_options, describe_options, options_of
from pipeline.planning.cp_plans import CPJob
from pipeline.planning.mixing import selection_totals
from pipeline.planning.workloads import resolve_workload
from pipeline.settings.cluster import WorkloadSettings
from pipeline.settings.context_parallel import ContextParallelSettings
from pipeline.shard.manifest import Manifest
from pipeline.shard.segment import parse_segment
from pipeline.shard.token_store import TokenStore
from pipeline.tokenizer.identity import TokenizerIdentity

_SUMMED = (
    "stream_documents",
    "stream_tokens",
    "stream_pieces",
    "cut_documents",
    "steps",
    "placed_tokens",
    "targets",
    "tail_pieces",
    "tail_tokens",
)
"""Totals of a chain that are sums over its segments."""


def segment_config(manifest: Manifest, path: Path, overrides: tuple[str, ...] = ()) -> RunConfig:
    """The configuration of a segment to be added.

    `[tokenizer]`, `[workload]`, `shards.split_bytes` and `shards.store` are the chain's where it
    does not say them.

    Args:
        manifest: of the chain.
        path: a TOML file.
        overrides: `table.key=value`.

    Raises:
        ConfigError: as `load_config`.
    """
    document = read_document(path)
    for name in ("tokenizer", "workload"):
        document.setdefault(name, manifest.config[name])
    shards = {name: manifest.config["shards"][name] for name in ("split_bytes", "store")}
    document["shards"] = {
        name: value for name, value in shards.items() if value is not None
    } | document.get("shards", {})
    return parse_config(override(document, overrides), name=str(path))


def check_shared(manifest: Manifest, config: RunConfig, identity: TokenizerIdentity) -> None:
    """Refuse a configuration that asks for what the chain has otherwise.

    Args:
        manifest: of the chain.
        config: of the segment to be added.
        identity: of its tokenizer.

    Raises:
        ConfigError: the first difference: what the chain has, and what to do.
    """
    have, want = manifest.tokenizer, identity.as_dict()
    differ = sorted(name for name in want if name != "name" and have.get(name) != want[name])
    if differ:
        _refuse(
            f"the chain's tokenizer is {have['name']!r}, the configuration's differs from it in "
            f"{', '.join(differ)}; leave [tokenizer] out to have the chain's"
        )
    _check_workload(manifest, config.workload)
    rows, shards = manifest.rows_per_group, config.shards
    context_length = config.packing.context_length
    asked = max(1, shards.row_group_tokens // context_length)
    if "row_group_tokens" in shards.model_fields_set and asked != rows:
        _refuse(
            f"the chain has {rows} micro-batches a row group, shards.row_group_tokens "
            f"{shards.row_group_tokens} asks for {asked} at context_length {context_length}; leave "
            f"it out, or set it to {rows * context_length}"
        )
    order = config.parallel.micro_batch_order
    if order not in (AUTO, manifest.micro_batch_order):
        _refuse(
            f"the chain's micro_batch_order is {manifest.micro_batch_order!r}, the configuration's "
            f"{order!r}; leave parallel.micro_batch_order out"
        )
    _check_degrees(manifest, config.context_parallel, config.packing.bound)


def _check_workload(manifest: Manifest, settings: WorkloadSettings) -> None:
    """The model is the chain's. Settings that are the chain's own name files that may be gone."""
    if settings.model_dump() == config_of(manifest).workload.model_dump():
        return
    try:
        asked = resolve_workload(settings)
    except ConfigError as error:
        _refuse(f"{error}; leave [workload] out to have the chain's model, which needs no file")
    if asked.as_dict() != workload_of(manifest).as_dict():
        _refuse(
            f"the chain's workload model is {manifest.workload.model!r}, with other values than "
            "the configuration's; leave [workload] out to have the chain's"
        )


def _check_degrees(manifest: Manifest, settings: ContextParallelSettings, max_tokens: int) -> None:
    """The degrees that are asked for are there, and as they are asked for."""
    workload, chain = workload_of(manifest), quote(str(manifest.directory))
    for cp_size in settings.sizes:
        entry = manifest.cp.get(str(cp_size))
        if entry is None:
            _refuse(
                f"the chain has CP plans of degrees {list(manifest.cp_sizes)}, the configuration "
                f"asks for {cp_size}; leave context_parallel.sizes out, and plan it with: "
                f"steelyard replan {chain} --cp-size {cp_size}"
            )
        if settings.model_fields_set <= {"sizes"}:
            continue
        asked = describe_options(
            settings.strategy, cp_options(settings, max_tokens), workload, cp_size
        )
        differ = [name for name in asked if entry.get(name) != asked[name]]
        if differ:
            name = differ[0]
            _refuse(
                f"the chain's CP plans of degree {cp_size} have {name} {entry.get(name)!r}, the "
                f"configuration asks for {asked[name]!r}; leave [context_parallel] out, or change "
                f"the chain first: steelyard replan {chain} --cp-size {cp_size}"
            )


def _refuse(message: str) -> NoReturn:
    raise ConfigError(f"extend: {message}")


def chain_cp_jobs(manifest: Manifest, *, root: Path, out: Path, max_tokens: int) -> list[CPJob]:
    """A job for each degree of a chain, as it was planned, for parts of another segment.

    Args:
        manifest: of the chain.
        root: where the parts' plan is.
        out: where `cp=N/` goes.
        max_tokens: S_max of the segment.
    """
    workload = workload_of(manifest)
    return [
        CPJob(
            root=str(root),
            out=str(out),
            cp_size=cp_size,
            strategy=manifest.cp[str(cp_size)]["strategy"],
            options=replace(
                options_of(manifest.cp[str(cp_size)], workload),
                pad_to=manifest.pad_multiple(cp_size),
                max_tokens=max_tokens,
            ),
            workload=workload,
        )
        for cp_size in manifest.cp_sizes
    ]


def describe_extended(
    document: Mapping[str, Any],
    manifest: Manifest,
    *,
    config: RunConfig,
    new_stores: Sequence[TokenStore],
    plan: Mapping[str, Any],
    plan_key: str,
    balance: dict[str, Any],
    cp: Mapping[str, Any],
    cp_jobs: Sequence[CPJob],
) -> dict[str, Any]:
    """Every field of the manifest of a chain with one more segment, but `digests`.

    Args:
        document: the chain's manifest.json.
        manifest: the same, read.
        config: of the segment.
        new_stores: token stores that the segment brings.
        plan: the plan stage's receipt.
        plan_key: what that plan depends on.
        balance: of the segment.
        cp: by degree, its entry over the whole chain.
        cp_jobs: of these degrees.
    """
    segment = replace(
        parse_segment(plan["segment"]), plan_key=plan_key, config=config_entry(config)
    )
    segments = [*manifest.segments, segment]
    sources = [source_entry(manifest.directory, store) for store in new_stores]
    balances = [*balances_of(document), balance]
    fingerprints = document["fingerprints"]
    key = chain_key([*plan_keys(manifest), plan_key])
    return {
        **document,
        "sources": [*document["sources"], *sources],
        "segments": [entry.as_dict() for entry in segments],
        "totals": {
            **source_totals([*document["sources"], *sources]),
            **{name: document["totals"][name] + plan["totals"][name] for name in _SUMMED},
            **selection_totals(segments),
        },
        "balance": {**combined(balances), "segments": balances},
        "cp": dict(cp),
        "fingerprints": {
            **fingerprints,
            "tokenize": [
                *fingerprints["tokenize"],
                *(store.identity["key"] for store in new_stores),
            ],
            "context_parallel": {str(job.cp_size): job.key(key) for job in cp_jobs},
        },
    }


def balances_of(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The balance of each segment, from a manifest.json."""
    balance = document["balance"]
    return list(balance["segments"]) if "segments" in balance else [balance]


def source_totals(sources: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Totals that add up a manifest's sources."""
    rejected: dict[str, int] = {}
    for source in sources:
        for reason, count in source["rejected"].items():
            rejected[reason] = rejected.get(reason, 0) + count
    return {
        "documents": sum(source["documents"] for source in sources),
        "tokens": sum(source["tokens"] for source in sources),
        "rejected": rejected,
    }
