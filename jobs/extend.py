"""One more segment for a finished set: its own mixture, N, S and policy, from what has not run.

As a build, a stage a paragraph. All that is new waits beside the set and joins it at one moment, so
whoever trains on the set meanwhile sees what there was.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from jobs import stages
from jobs.build import BuildResult
from jobs.executor import open_executor
from jobs.progress import Reporter
from jobs.tokenizing import Corpus, find_corpora, tokenize, with_engine
from jobs.workplace import Workplace
from pipeline.balance import cp_parts, describe_cp, measure_plan
from pipeline.built import check_parts, stores_of, workload_of
from pipeline.config import ConfigError, RunConfig
from pipeline.extending import balances_of, chain_cp_jobs, check_shared, describe_extended
from pipeline.planning.chain import ChainEnd, chain_key, plan_keys
from pipeline.planning.cp_plans import check_padding
from pipeline.planning.plan import plan_key
from pipeline.planning.pool import pool_before
from pipeline.publish import publish, read_receipts, recover, staged_parts
from pipeline.settings.cluster import schedule_of
from pipeline.shard.manifest import Manifest, load_manifest
from pipeline.shard.segment import parse_segment
from pipeline.shard.token_store import TokenStore
from pipeline.shard.writer import FileReceipt
from pipeline.state.ledger import Ledger
from pipeline.state.lock import exclusive
from pipeline.tokenizer.resolve import resolve_tokenizer

_TABLES = ("steps.parquet", "tail.parquet")


def extend(
    config: RunConfig, root: Path, reporter: Reporter, *, dry_run: bool = False
) -> BuildResult:
    """Add a segment to a set, or go on where a killed extension stopped.

    Args:
        config: of the segment; what a chain shares is as the set has it (`pipeline.extending`).
        root: the set's directory.
        reporter: where progress goes.
        dry_run: stop after the plan; token stores stay, nothing else is published.

    Raises:
        ConfigError: settings that the chain has otherwise, or a source that is another by its name.
        PlanError: what is left makes no step.
        FormatError: `root` holds no finished set, or a damaged one.
        Busy: another job works on `root`.
        ValueError: a mistake in configuration or input; the message says which.
    """
    root = root.resolve()
    load_manifest(root)  # refuses what is no set before anything is written there
    place = Workplace.of(root, config.job)
    with exclusive(place.state) as hold:
        recover(root)
        manifest = load_manifest(root)
        identity = resolve_tokenizer(config.tokenizer)
        check_shared(manifest, config, identity)
        known = stores_of(manifest)
        corpora, numbers = _numbered(find_corpora(config, identity, place), manifest, known)
        keys, workload = plan_keys(manifest), workload_of(manifest)
        store_keys = [corpus.key for corpus in corpora]
        with (
            open_executor(config.job) as executor,
            Ledger(place.ledger, hold) as ledger,
        ):
            if len(keys) > 1 and ledger.receipt(keys[-1], "plan") is not None:
                ledger.forget(["plan"])  # it is published; only the job's end is missing
                after = chain_key(keys[:-1])
                if keys[-1] == plan_key(store_keys, config, after=after, workload=workload):
                    place.clean_up()
                    return _finished(root, manifest, reporter)
            identity = with_engine(corpora, config, identity, reporter)
            stores = tokenize(corpora, identity, config, executor, reporter)
            new_stores = [
                store for store, number in zip(stores, numbers, strict=True) if number >= len(known)
            ]

            out = staged_parts(root)
            key = plan_key(store_keys, config, after=chain_key(keys), workload=workload)
            scratch = place.scratch_of(key)
            check_parts(manifest, ("plan/",))
            pool = pool_before(manifest, len(manifest.segments), known, scratch / "pool")
            chain = ChainEnd.of(manifest, [*known, *new_stores], numbers, pool)
            plan = stages.plan(out, scratch, chain, config, key, executor, ledger, reporter)
            segment = parse_segment(plan["segment"])
            schedule = schedule_of(config.parallel)
            balance = measure_plan(out, segment, schedule, manifest.micro_batch_order)
            jobs = chain_cp_jobs(manifest, root=out, out=out, max_tokens=segment.max_tokens)
            for job in jobs:
                check_padding(job, segment.part_numbers)
            if dry_run:
                return BuildResult(plan=plan, balance=balance, finished=False)

            kept = [file for file in read_receipts(manifest) if file.path not in _TABLES]
            files = [FileReceipt.from_dict(file) for file in plan["files"]]
            move = stages.move_job(
                out,
                scratch,
                segment,
                chain.stores,
                run_tokens=config.shards.run_tokens,
                dtype=manifest.dtype,
                rows_per_group=manifest.rows_per_group,
            )
            files += stages.move_tokens(move, key, executor, ledger, reporter)
            cp: dict[str, Any] = {}
            for job in jobs:
                files += stages.plan_cp(job, key, segment, executor, ledger, reporter)
                parts = cp_parts(root, range(manifest.num_parts), job.cp_size)
                parts += cp_parts(out, segment.part_numbers, job.cp_size)
                cp[str(job.cp_size)] = describe_cp(job, parts)

            document = describe_extended(
                json.loads((root / "manifest.json").read_bytes()),
                manifest,
                config=config,
                new_stores=new_stores,
                plan=plan,
                plan_key=key,
                balance=balance,
                cp=cp,
                cp_jobs=jobs,
            )
            del document["digests"]
            hold.check()
            publish(root, document, kept, staged=files)
        place.clean_up()
    return BuildResult(plan=plan, balance=balance, finished=True)


def _finished(root: Path, manifest: Manifest, reporter: Reporter) -> BuildResult:
    """The extension that had been published when its job died."""
    reporter.line(f"{root}: the segment is there; nothing to do")
    document = json.loads((root / "manifest.json").read_bytes())
    plan = {"segment": document["segments"][-1], "totals": dict(manifest.totals)}
    return BuildResult(plan=plan, balance=balances_of(document)[-1], finished=True)


def _numbered(
    corpora: Sequence[Corpus], manifest: Manifest, known: Sequence[TokenStore]
) -> tuple[list[Corpus], list[int]]:
    """The corpora, those that the chain has with its stores, and which sources of it they are.

    Raises:
        ConfigError: a name that the chain has for another corpus, or a corpus under another name.
    """
    names = {source.name: number for number, source in enumerate(manifest.sources)}
    key_of = [store.identity["key"] for store in known]
    found: list[Corpus] = []
    numbers: list[int] = []
    new = len(known)
    for corpus in corpora:
        name = corpus.source.name
        if name in names and corpus.key == key_of[names[name]]:
            numbers.append(names[name])
            found.append(replace(corpus, directory=known[names[name]].directory))
            continue
        if name in names:
            raise ConfigError(
                f"extend: source {name!r} is not what the chain has under this name: its files, or "
                "settings by which they are read, have changed; restore them, or give it another "
                "name, and it is a new source"
            )
        if corpus.key in key_of:
            other = manifest.sources[key_of.index(corpus.key)].name
            raise ConfigError(
                f"extend: source {name!r} holds what the chain has as {other!r}; call it so, or "
                "what has run of it would be taken again"
            )
        numbers.append(new)
        found.append(corpus)
        new += 1
    return found, numbers
