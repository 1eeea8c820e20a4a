"""The manifest of a set: what it is, in JSON types (FORMAT.md section 6)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from packer.orders import AUTO
from packer.workload import Workload
from pipeline.config import RunConfig
from pipeline.files.url_path import is_inside
from pipeline.settings.cluster import ParallelSettings
from pipeline.shard import schema
from pipeline.shard.digests import sha256_file
from pipeline.shard.token_store import TokenStore
from pipeline.tokenizer.identity import TokenizerIdentity

_CHANGES_NOTHING: Any = {"job": True, "rejects": True, "tokenizer": {"engine"}}
"""Settings that change nothing in a set, so the manifest does not have them."""


def describe(
    root: Path,
    config: RunConfig,
    identity: TokenizerIdentity,
    stores: Sequence[TokenStore],
    workload: Workload,
    plan: dict[str, Any],
    order: str,
    fingerprints: dict[str, Any],
) -> dict[str, Any]:
    """Every field of the manifest but `balance`, `cp` and `digests`.

    Args:
        root: the set's directory.
        config: the resolved configuration.
        identity: the tokenizer.
        stores: token stores in the order of `config.sources`.
        workload: the model that was planned with.
        plan: the plan stage's receipt.
        order: rule by which ranks run their micro-batches.
        fingerprints: what each stage depended on.
    """
    rejected: dict[str, int] = {}
    for store in stores:
        for reason, count in store.identity["rejected"].items():
            rejected[reason] = rejected.get(reason, 0) + count
    totals = {
        "documents": sum(store.documents for store in stores),
        "tokens": sum(store.tokens for store in stores),
        "rejected": rejected,
    }
    return {
        "format": schema.FORMAT,
        "version": schema.VERSION,
        "dtype": dtype_of(stores),
        "tokenizer": identity.as_dict(),
        "sources": [source_entry(root, store) for store in stores],
        "workload": workload.as_dict(),
        "micro_batch_order": order,
        "rows_per_group": rows_per_group(config),
        "segments": [plan["segment"]],
        "totals": totals | plan["totals"],
        "config": config_entry(config),
        "fingerprints": fingerprints,
    }


def config_entry(config: RunConfig) -> dict[str, Any]:
    """The resolved configuration as a manifest has it."""
    return config.model_dump(mode="json", by_alias=True, exclude=_CHANGES_NOTHING)


def dtype_of(stores: Sequence[TokenStore]) -> str:
    """The shards' token type: the stores'."""
    return stores[0].dtype.name


def rows_per_group(config: RunConfig) -> int:
    """Micro-batches of a shard's row group."""
    return max(1, config.shards.row_group_tokens // config.packing.context_length)


def order_key(settings: ParallelSettings) -> str | dict[str, Any]:
    """What the order of micro-batches depends on: the rule that was asked for, or the cluster."""
    order = settings.micro_batch_order
    cluster = settings.model_dump(mode="json", exclude={"micro_batch_order"})
    return cluster if order == AUTO else order


def source_entry(root: Path, store: TokenStore) -> dict[str, Any]:
    """What the manifest says of a source; `root` is the set's directory."""
    given = store.directory
    inside = is_inside(given, root)
    return {
        "name": store.name,
        "store": given.relative_to(root).as_posix() if inside else given.as_posix(),
        "store_sha256": sha256_file(given / "source.json"),
        "documents": store.documents,
        "tokens": store.tokens,
        "rejected": store.identity["rejected"],
    }
