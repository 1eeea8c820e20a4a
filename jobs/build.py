"""The main job: corpora in, balanced and verified shards out. One page, one stage a paragraph."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from jobs import stages
from jobs.executor import Executor, open_executor
from jobs.progress import Reporter
from pipeline.balance import measure_cp, measure_plan
from pipeline.config import RunConfig
from pipeline.cp_plans import CPJob
from pipeline.ledger import Ledger
from pipeline.lock import exclusive
from pipeline.planning import plan_key, resolve_workload
from pipeline.publish import WORK, publish, recover
from pipeline.shard import schema
from pipeline.shard.digests import sha256_file
from pipeline.shard.manifest import load_manifest, parse_segment
from pipeline.shard.token_store import TokenStore
from pipeline.shard.writer import PartReceipt
from pipeline.tokenizer import TokenizerIdentity, policy_text, resolve_tokenizer


class OtherConfiguration(ValueError):
    """The directory holds a finished set that was built with other settings or inputs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildResult:
    """What a build came to: the plan's receipt, its balance, and whether anything was written."""

    plan: dict[str, Any]
    balance: dict[str, Any]
    finished: bool


def build(
    config: RunConfig, root: Path, reporter: Reporter, *, dry_run: bool = False
) -> BuildResult:
    """Build a set in `root`, or go on where a killed build stopped.

    Args:
        config: the whole configuration.
        root: the set's directory; made where it is missing.
        reporter: where progress goes.
        dry_run: stop after the plan; token stores stay, nothing else is published.

    Raises:
        OtherConfiguration: `root` holds a finished set of another configuration.
        Busy: another job works on `root`.
        ValueError: a mistake in configuration or input; the message says which.
    """
    root = root.resolve()
    with exclusive(root / WORK), open_executor(config.job) as executor:
        recover(root)
        identity = resolve_tokenizer(config.tokenizer)
        reporter.line(f"tokenizer {identity.name}: {policy_text(identity)}")
        stores = _tokenize(config, identity, root, executor, reporter)

        keys = _keys(config, stores)
        if (root / "manifest.json").exists():
            return _finished(root, keys, reporter)

        workload = resolve_workload(config.workload)
        with Ledger(root / WORK / "ledger.jsonl") as ledger:
            plan = stages.plan(root, stores, config, keys["plan"], ledger, reporter)
            segment = parse_segment(plan["segment"])
            balance = measure_plan(root, segment, workload, config.parallel)
            if dry_run:
                return BuildResult(plan=plan, balance=balance, finished=False)

            num_parts = segment.parts
            files = [PartReceipt.from_dict(file) for file in plan["files"]]
            files += stages.move_tokens(
                root, stores, config, keys["plan"], num_parts, executor, ledger, reporter
            )
            cp = {}
            for cp_size in config.context_parallel.sizes:
                strategy = config.context_parallel.strategy
                job = CPJob(root=str(root), cp_size=cp_size, strategy=strategy, workload=workload)
                files += stages.plan_cp(job, keys["plan"], num_parts, executor, ledger, reporter)
                measures = measure_cp(root, [segment], cp_size)
                cp[str(cp_size)] = {"strategy": strategy, **measures}

            stages.sweep(root, files)
            manifest = _manifest(root, config, identity, stores, plan, keys) | {
                "balance": balance,
                "cp": cp,
            }
            publish(root, manifest, files)
            ledger.remove()
        stages.remove_scratch(root)
    return BuildResult(plan=plan, balance=balance, finished=True)


def _tokenize(
    config: RunConfig,
    identity: TokenizerIdentity,
    root: Path,
    executor: Executor,
    reporter: Reporter,
) -> list[TokenStore]:
    store_root = Path(config.shards.store).resolve() if config.shards.store else root / "store"
    stores = [
        TokenStore(
            stages.tokenize_source(
                source,
                identity,
                root,
                store_root,
                executor,
                reporter,
                split_bytes=config.shards.split_bytes,
            )
        )
        for source in config.sources
    ]
    for store in stores:
        store.check_tables()  # planning trusts lengths.u32
    return stores


def _keys(config: RunConfig, stores: list[TokenStore]) -> dict[str, Any]:
    """The fingerprints in the manifest: what each stage depends on."""
    store_keys = [store.key for store in stores]
    return {
        "tokenize": store_keys,
        "plan": plan_key(store_keys, config),
        "context_parallel": config.context_parallel.model_dump(mode="json"),
        "rows_per_group": stages.rows_per_group(config),
    }


def _finished(root: Path, keys: dict[str, Any], reporter: Reporter) -> BuildResult:
    """What is there already, when it is what the configuration asks for."""
    manifest = load_manifest(root)
    changed = [name for name, value in manifest.fingerprints.items() if value != keys[name]]
    if changed:
        advice = (
            "run `steelyard replan` for other CP degrees, or choose another --out"
            if changed == ["context_parallel"]
            else "choose another --out (set shards.store to share the token stores)"
        )
        raise OtherConfiguration(
            f"{root} holds a finished set that differs in {', '.join(changed)}; {advice}"
        )
    reporter.line(f"{root} is finished: nothing to do")
    plan = {"segment": asdict(manifest.segments[0]), "totals": dict(manifest.totals)}
    return BuildResult(plan=plan, balance=dict(manifest.balance), finished=True)


def _manifest(
    root: Path,
    config: RunConfig,
    identity: TokenizerIdentity,
    stores: list[TokenStore],
    plan: dict[str, Any],
    keys: dict[str, Any],
) -> dict[str, Any]:
    """Every field of FORMAT.md section 6 but balance, CP figures and digests."""
    workload = resolve_workload(config.workload)
    sources = [_source_entry(root, store) for store in stores]
    rejected: dict[str, int] = {}
    for source in sources:
        for reason, count in source["rejected"].items():
            rejected[reason] = rejected.get(reason, 0) + count
    totals = {
        "documents": sum(store.documents for store in stores),
        "tokens": sum(store.tokens for store in stores),
        "rejected": rejected,
    }
    return {
        "format": schema.FORMAT,
        "version": schema.VERSION,
        "dtype": stages.dtype_of(stores),
        "tokenizer": identity.as_dict(),
        "sources": sources,
        "workload": {
            "model": "quadratic",
            "crossover": workload.crossover,
            "scale": 256,
            "constant": workload.constant,
        },
        "micro_batch_order": "identity",
        "rows_per_group": keys["rows_per_group"],
        "segments": [plan["segment"]],
        "totals": totals | plan["totals"],
        "config": config.model_dump(mode="json", by_alias=True, exclude={"job"}),
        "fingerprints": keys,
    }


def _source_entry(root: Path, store: TokenStore) -> dict[str, Any]:
    inside = store.directory.is_relative_to(root)
    return {
        "name": store.name,
        "store": os.path.relpath(store.directory, root) if inside else str(store.directory),
        "store_sha256": sha256_file(store.directory / "source.json"),
        "documents": store.documents,
        "tokens": store.tokens,
        "rejected": store.identity["rejected"],
    }
