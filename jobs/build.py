"""The main job: corpora in, balanced shards out. One page, one stage a paragraph."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jobs import stages
from jobs.executor import open_executor
from jobs.progress import Reporter
from jobs.tokenizing import Corpus, find_corpora, tokenize, with_engine
from jobs.workplace import Workplace
from pipeline.balance import cp_parts, describe_cp, measure_plan
from pipeline.config import RunConfig
from pipeline.describe import describe, dtype_of, order_key, rows_per_group
from pipeline.files.sizes import Sizes
from pipeline.planning.chain import ChainEnd
from pipeline.planning.cp_plans import CPJob, check_padding, cp_jobs
from pipeline.planning.plan import plan_key
from pipeline.planning.workloads import resolve_workload
from pipeline.publish import publish, read_receipts, recover
from pipeline.reading.token_records import ends_text
from pipeline.settings.cluster import schedule_of
from pipeline.shard.manifest import load_manifest
from pipeline.shard.segment import parse_segment
from pipeline.shard.tables import FormatError
from pipeline.shard.writer import FileReceipt
from pipeline.state.ledger import Ledger
from pipeline.state.lock import exclusive
from pipeline.tokenizer.identity import policy_text
from pipeline.tokenizer.resolve import resolve_tokenizer


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
    place = Workplace.of(root, config.job)
    with exclusive(place.state) as hold:
        recover(root)
        workload = resolve_workload(config.workload)
        identity = resolve_tokenizer(config.tokenizer)
        reporter.line(f"tokenizer {policy_text(identity)}")
        for source in config.sources:
            if source.given_ends:
                reporter.line(f"source {source.name} {ends_text(source.given_ends, identity)}")
        corpora = find_corpora(config, identity, place)
        jobs = cp_jobs(
            config.context_parallel,
            root=root,
            out=root,
            max_tokens=config.packing.bound,
            workload=workload,
        )
        keys = _fingerprints(config, corpora, jobs)
        if (root / "manifest.json").exists():
            return _finished(place, keys, reporter)

        with (
            open_executor(config.job) as executor,
            Ledger(place.ledger, hold) as ledger,
        ):
            identity = with_engine(corpora, config, identity, reporter)
            stores = tokenize(corpora, identity, config, executor, reporter)

            key, scratch = keys["plan"], place.scratch_of(keys["plan"])
            chain = ChainEnd.start(stores)
            plan = stages.plan(root, scratch, chain, config, key, executor, ledger, reporter)
            segment = parse_segment(plan["segment"])
            balance = measure_plan(
                root,
                segment,
                schedule_of(config.parallel),
                config.parallel.micro_batch_order,
            )
            for job in jobs:
                check_padding(job, segment.part_numbers)
            if dry_run:
                return BuildResult(plan=plan, balance=balance, finished=False)

            files = [FileReceipt.from_dict(file) for file in plan["files"]]
            move = stages.move_job(
                root,
                scratch,
                segment,
                stores,
                run_tokens=config.shards.run_tokens,
                dtype=dtype_of(stores),
                rows_per_group=rows_per_group(config),
            )
            files += stages.move_tokens(move, key, executor, ledger, reporter)
            cp, parts = {}, segment.part_numbers
            for job in jobs:
                files += stages.plan_cp(job, key, segment, executor, ledger, reporter)
                cp[str(job.cp_size)] = describe_cp(job, cp_parts(root, parts, job.cp_size))

            stages.sweep(root, files)
            order = balance["micro_batch_order"]
            manifest = describe(root, config, identity, stores, workload, plan, order, keys)
            hold.check()
            publish(root, manifest | {"balance": balance, "cp": cp}, files)
        place.clean_up()
    return BuildResult(plan=plan, balance=balance, finished=True)


def _fingerprints(
    config: RunConfig, corpora: Sequence[Corpus], jobs: Sequence[CPJob]
) -> dict[str, Any]:
    """What each stage depends on; the manifest holds them."""
    store_keys = [corpus.key for corpus in corpora]
    plan = plan_key(store_keys, config)
    return {
        "tokenize": store_keys,
        "plan": plan,
        "rows_per_group": rows_per_group(config),
        "micro_batch_order": order_key(config.parallel),
        "context_parallel": {str(job.cp_size): job.key(plan) for job in jobs},
    }


def _finished(place: Workplace, keys: dict[str, Any], reporter: Reporter) -> BuildResult:
    """What is there already, when it is what the configuration asks for."""
    root = place.root
    manifest = load_manifest(root)
    first, *others = manifest.segments
    if others or first.cut:
        raise OtherConfiguration(
            f"{root} holds a set that was extended or forked, of {len(others) + 1} segments; add "
            "to it with steelyard extend, or choose another --out"
        )
    have = dict(manifest.fingerprints)
    changed = [
        name for name in ("tokenize", "plan", "rows_per_group") if have.get(name) != keys[name]
    ]
    have_cp = dict(have.get("context_parallel") or {})
    same_cp = keys["context_parallel"].items() <= have_cp.items()
    if "plan" not in changed and not same_cp:
        changed.append("context_parallel")
    if changed:
        advice = (
            "run `steelyard replan` for other CP plans, or choose another --out"
            if changed == ["context_parallel"]
            else "choose another --out (set shards.store to share the token stores)"
        )
        raise OtherConfiguration(
            f"{root} holds a finished set that differs in {', '.join(changed)}; {advice}"
        )
    asked, order = keys["micro_batch_order"], manifest.micro_batch_order
    if asked not in (have.get("micro_batch_order", asked), order):
        raise OtherConfiguration(
            f"{root} holds a finished set whose micro-batches run in the order {order!r}, chosen "
            f"for another [parallel]; set parallel.micro_batch_order = {order!r} to keep it, or "
            "choose another --out (set shards.store to share the token stores)"
        )
    sizes = Sizes(root)
    for receipt in read_receipts(manifest):
        if sizes.of(receipt.path) != receipt.bytes:
            raise FormatError(
                "is missing or damaged; to build the set again remove manifest.json, and the file",
                path=root / receipt.path,
            )
    place.clean_up()
    reporter.line(f"{root} is finished: nothing to do")
    plan = {"segment": first.as_dict(), "totals": dict(manifest.totals)}
    return BuildResult(plan=plan, balance=dict(manifest.balance), finished=True)
