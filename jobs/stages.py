"""The stages after tokenizing: pipeline functions mapped over units of work.

Each function here is one stage on one page: which units there are, which of them the ledger has
already, and what is done with the receipts.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jobs.executor import Executor, LocalExecutor
from jobs.progress import Reporter
from jobs.searching import searching
from jobs.units import Unit, run_units
from pipeline.config import RunConfig, fingerprint
from pipeline.describe import dtype_of, rows_per_group
from pipeline.ledger import Ledger, Receipt, remove_ledger
from pipeline.materialize import MoveJob, assemble_shard, scatter_run
from pipeline.planning.cp_plans import CPJob, write_cp_part
from pipeline.planning.plan import write_plan
from pipeline.planning.runs import RunGroups, inverse_is_there, run_path
from pipeline.publish import WORK
from pipeline.shard.atomic import remove_temporary
from pipeline.shard.manifest import EVERYTHING
from pipeline.shard.token_store import TokenStore
from pipeline.shard.writer import FileReceipt

log = logging.getLogger(__name__)

ALONE_ROWS = 1 << 16
"""So few micro-batches are planned over CP ranks in less time than workers compile the kernels."""
COMPILING = "kernels are compiled first"


def plan(
    root: Path,
    stores: Sequence[TokenStore],
    config: RunConfig,
    key: str,
    executor: Executor,
    ledger: Ledger,
    reporter: Reporter,
) -> Receipt:
    """Plan the stream, unless the ledger has this plan whole; the stage's receipt."""
    receipt = ledger.receipt(key, "plan")
    if receipt is not None and _plan_is_there(root, scratch_of(root, key), receipt):
        reporter.line("plan: there already")
        return receipt
    ledger.forget(["plan"])
    scratch = scratch_of(root, key)
    if config.packing.policy == "lookahead":
        with reporter.stage("plan", total=None, unit="windows", before=COMPILING) as stage:
            receipt = write_plan(root, scratch, stores, config, searching(executor, stage))
    else:
        with reporter.stage("plan", total=1, unit="stream", before=COMPILING) as stage:
            receipt = write_plan(root, scratch, stores, config)
            stage.advance(1)
    ledger.record(key, "plan", receipt)
    return receipt


def plan_cp(
    job: CPJob,
    plan_key: str,
    num_parts: int,
    num_rows: int,
    executor: Executor,
    ledger: Ledger,
    reporter: Reporter,
) -> list[FileReceipt]:
    """Plan one CP degree for every plan part, `num_rows` micro-batches in all."""
    out = Path(job.out)
    if num_rows < ALONE_ROWS:
        executor = LocalExecutor()
    units = [
        Unit(name=f"cp={job.cp_size}/{part}", arguments=(job, part)) for part in range(num_parts)
    ]
    name = f"cp plan {job.cp_size}"
    with reporter.stage(name, total=num_parts, unit="parts", before=COMPILING) as stage:
        receipts = run_units(
            executor,
            ledger,
            job.key(plan_key),
            _write_cp_part,
            units,
            stage,
            intact=lambda _, receipt: _is_there(out, receipt),
        )
    return [FileReceipt.from_dict(receipt) for receipt in receipts]


def move_tokens(
    root: Path,
    stores: Sequence[TokenStore],
    config: RunConfig,
    plan_key: str,
    num_parts: int,
    executor: Executor,
    ledger: Ledger,
    reporter: Reporter,
) -> list[FileReceipt]:
    """Move the tokens to where the plan says: scatter runs, then assemble shards."""
    dtype = dtype_of(stores)
    job = MoveJob(
        root=str(root),
        scratch=str(scratch_of(root, plan_key)),
        stores=tuple(str(store.directory) for store in stores),
        most_taken=tuple(
            config.packing.context_length
            if config.documents_of(source).longer_than_context == "truncate"
            else EVERYTHING
            for source in config.sources
        ),
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
                intact=lambda _, receipt: run_path(
                    Path(job.scratch), receipt["group"], "offsets"
                ).exists(),
            )
    with reporter.stage("move: write shards", total=num_parts, unit="shards") as stage:
        receipts = run_units(
            executor,
            ledger,
            key,
            _assemble_shard,
            shards,
            stage,
            intact=lambda _, receipt: _is_there(root, receipt),
        )
    return [FileReceipt.from_dict(receipt) for receipt in receipts]


def scratch_of(root: Path, plan_key: str) -> Path:
    """Where a plan's inverses and runs are; another plan's never mix with them."""
    return root / WORK / f"scratch-{plan_key[:16]}"


def clean_up(root: Path) -> None:
    """Remove what only an unfinished set needs: scratch, as large as the tokens, and the ledger."""
    for path in (root / WORK).glob("scratch-*"):
        shutil.rmtree(path, ignore_errors=True)
    remove_ledger(root / WORK / "ledger.jsonl")


def sweep(root: Path, parts: Sequence[FileReceipt]) -> None:
    """Remove plan, shard and CP files that an unfinished build with other settings left."""
    kept = {part.path for part in parts}
    remove_temporary(root)
    for folder in ("plan", "shards", "cp=*"):
        for directory in root.glob(folder):
            remove_temporary(directory)
        for path in sorted(root.glob(f"{folder}/[0-9]*.parquet")):
            if path.relative_to(root).as_posix() not in kept:
                log.warning("removing %s: left by an unfinished build with other settings", path)
                path.unlink()
    for directory in root.glob("cp=*"):
        if not any(directory.iterdir()):
            directory.rmdir()


def _plan_is_there(root: Path, scratch: Path, receipt: Receipt) -> bool:
    parts = range(receipt["segment"]["parts"])
    return all(_is_there(root, file) for file in receipt["files"]) and all(
        inverse_is_there(scratch, part) for part in parts
    )


def _done(root: Path, ledger: Ledger, key: str, unit: Unit) -> bool:
    receipt = ledger.receipt(key, unit.name)
    return receipt is not None and _is_there(root, receipt)


def _is_there(root: Path, receipt: dict[str, Any]) -> bool:
    path = root / receipt["path"]
    return path.exists() and path.stat().st_size == receipt["bytes"]


def _write_cp_part(job: CPJob, part: int) -> Receipt:
    return write_cp_part(job, part).as_dict()


def _assemble_shard(job: MoveJob, part: int) -> Receipt:
    return assemble_shard(job, part).as_dict()
