"""The build's stages: pipeline functions mapped over units of work.

Each function here is one stage on one page: which units there are, which of them the ledger has
already, and what is done with the receipts.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jobs.executor import Executor
from jobs.progress import Reporter
from jobs.units import Unit, run_units
from pipeline.config import RunConfig, SourceConfig, fingerprint
from pipeline.cp_plans import CPJob, write_cp_part
from pipeline.inputs import digest_inputs
from pipeline.ledger import Ledger, Receipt
from pipeline.materialize import MoveJob, assemble_shard, scatter_run
from pipeline.planning import write_plan
from pipeline.publish import WORK
from pipeline.runs import RunGroups, inverse_is_there, run_path
from pipeline.shard.schema import part_name
from pipeline.shard.token_store import TokenStore
from pipeline.shard.writer import PartReceipt
from pipeline.sources import list_inputs, plan_splits, store_key
from pipeline.tokenize import PartReceipt as TokenReceipt
from pipeline.tokenize import finish_store, part_is_there, tokenize_split
from pipeline.tokenizer import TokenizerIdentity

log = logging.getLogger(__name__)


def tokenize_source(
    source: SourceConfig,
    identity: TokenizerIdentity,
    root: Path,
    store_root: Path,
    executor: Executor,
    reporter: Reporter,
    *,
    split_bytes: int,
) -> Path:
    """Tokenize one source, unless its store is there; the store's directory."""
    inputs = list_inputs(source)
    digests = digest_inputs(inputs, cache=root / WORK / f"inputs-{source.name}.json")
    key = store_key(source, inputs, digests, identity, split_bytes=split_bytes)
    directory = store_root / f"{source.name}-{key[:16]}"
    if (directory / "source.json").exists():
        reporter.line(f"tokenize {source.name}: there already")
        return directory
    splits = plan_splits(source, inputs, split_bytes=split_bytes)
    units = [
        Unit(
            name=part_name(split.number),
            arguments=(split, source, identity, directory),
            amount=split.num_bytes,
        )
        for split in splits
    ]
    total = sum(unit.amount for unit in units)
    with (
        Ledger(directory / "ledger.jsonl") as ledger,
        reporter.stage(f"tokenize {source.name}", total=total, unit="bytes") as stage,
    ):
        receipts = run_units(
            executor,
            ledger,
            key,
            _tokenize,
            units,
            stage,
            intact=lambda receipt: part_is_there(directory, TokenReceipt.from_dict(receipt)),
        )
        finish_store(
            directory,
            name=source.name,
            key=key,
            identity=identity,
            inputs=inputs,
            digests=digests,
            receipts=[TokenReceipt.from_dict(receipt) for receipt in receipts],
            splits=splits,
        )
        ledger.remove()
    return directory


def plan(
    root: Path,
    stores: Sequence[TokenStore],
    config: RunConfig,
    key: str,
    ledger: Ledger,
    reporter: Reporter,
) -> Receipt:
    """Plan the stream, unless the ledger has this plan whole; the stage's receipt."""
    receipt = ledger.receipt(key, "plan")
    if receipt is not None and _plan_is_there(root, receipt):
        reporter.line("plan: there already")
        return receipt
    with reporter.stage("plan", total=1, unit="stream") as stage:
        receipt = write_plan(root, root / WORK, stores, config)
        ledger.record(key, "plan", receipt)
        stage.advance(1)
    return receipt


def plan_cp(
    job: CPJob,
    plan_key: str,
    num_parts: int,
    executor: Executor,
    ledger: Ledger,
    reporter: Reporter,
) -> list[PartReceipt]:
    """Plan one CP degree for every plan part."""
    root = Path(job.root)
    units = [
        Unit(name=f"cp={job.cp_size}/{part}", arguments=(job, part)) for part in range(num_parts)
    ]
    with reporter.stage(f"cp plan {job.cp_size}", total=num_parts, unit="parts") as stage:
        receipts = run_units(
            executor,
            ledger,
            job.key(plan_key),
            _write_cp_part,
            units,
            stage,
            intact=lambda receipt: _is_there(root, receipt),
        )
    return [PartReceipt.from_dict(receipt) for receipt in receipts]


def move_tokens(
    root: Path,
    stores: Sequence[TokenStore],
    config: RunConfig,
    plan_key: str,
    num_parts: int,
    executor: Executor,
    ledger: Ledger,
    reporter: Reporter,
) -> list[PartReceipt]:
    """Move the tokens to where the plan says: scatter runs, then assemble shards."""
    dtype = dtype_of(stores)
    job = MoveJob(
        root=str(root),
        scratch=str(root / WORK),
        stores=tuple(str(store.directory) for store in stores),
        dtype=dtype,
        num_parts=num_parts,
        num_groups=RunGroups.of(stores, run_tokens=config.shards.run_tokens).count,
        rows_per_group=rows_per_group(config),
    )
    key = fingerprint({"plan": plan_key, "dtype": dtype, "rows_per_group": job.rows_per_group})
    shards = [Unit(name=f"shard/{part}", arguments=(job, part)) for part in range(num_parts)]
    if any(not _done(root, ledger, key, unit) for unit in shards):
        runs = [
            Unit(name=f"run/{group}", arguments=(job, group)) for group in range(job.num_groups)
        ]
        with reporter.stage("move: read runs", total=len(runs), unit="runs") as stage:
            run_units(
                executor,
                ledger,
                key,
                scatter_run,
                runs,
                stage,
                intact=lambda receipt: run_path(root / WORK, receipt["group"], "offsets").exists(),
            )
    with reporter.stage("move: write shards", total=num_parts, unit="shards") as stage:
        receipts = run_units(
            executor,
            ledger,
            key,
            _assemble_shard,
            shards,
            stage,
            intact=lambda receipt: _is_there(root, receipt),
        )
    return [PartReceipt.from_dict(receipt) for receipt in receipts]


def remove_scratch(root: Path) -> None:
    """Give back the disk that moving the tokens took."""
    for name in ("runs", "inverse"):
        shutil.rmtree(root / WORK / name, ignore_errors=True)


def sweep(root: Path, parts: Sequence[PartReceipt]) -> None:
    """Remove plan, shard and CP files that an unfinished build with other settings left."""
    kept = {part.path for part in parts}
    for pattern in ("plan/*", "shards/*", "cp=*/*"):
        for path in root.glob(pattern):
            if path.relative_to(root).as_posix() not in kept:
                log.warning("removing %s: left by an unfinished build with other settings", path)
                path.unlink()
    for directory in root.glob("cp=*"):
        if not any(directory.iterdir()):
            directory.rmdir()


def dtype_of(stores: Sequence[TokenStore]) -> str:
    """The shards' token type: the stores'."""
    return stores[0].dtype.name


def rows_per_group(config: RunConfig) -> int:
    """Micro-batches of a shard's row group."""
    return max(1, config.shards.row_group_tokens // config.packing.context_length)


def _plan_is_there(root: Path, receipt: Receipt) -> bool:
    parts = range(receipt["segment"]["parts"])
    return all(_is_there(root, file) for file in receipt["files"]) and all(
        inverse_is_there(root / WORK, part) for part in parts
    )


def _done(root: Path, ledger: Ledger, key: str, unit: Unit) -> bool:
    receipt = ledger.receipt(key, unit.name)
    return receipt is not None and _is_there(root, receipt)


def _is_there(root: Path, receipt: dict[str, Any]) -> bool:
    path = root / receipt["path"]
    return path.exists() and path.stat().st_size == receipt["bytes"]


def _tokenize(*arguments: Any) -> Receipt:
    return tokenize_split(*arguments).as_dict()


def _write_cp_part(job: CPJob, part: int) -> Receipt:
    return write_cp_part(job, part).as_dict()


def _assemble_shard(job: MoveJob, part: int) -> Receipt:
    return assemble_shard(job, part).as_dict()
