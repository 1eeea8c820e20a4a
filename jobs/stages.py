"""The stages after tokenizing: pipeline functions mapped over units of work.

Each function here is one stage on one page: which units there are, which of them the ledger has
already, and what is done with the receipts.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path

from jobs.executor import Executor, LocalExecutor
from jobs.progress import Reporter
from jobs.searching import searching
from jobs.units import Unit, run_units
from pipeline.config import RunConfig, fingerprint
from pipeline.files.atomic import remove_temporary
from pipeline.files.sizes import Sizes
from pipeline.files.url_path import as_path
from pipeline.materialize import MoveJob, assemble_shard, scatter_run
from pipeline.planning.chain import ChainEnd
from pipeline.planning.cp_plans import CPJob, write_cp_part
from pipeline.planning.plan import write_plan
from pipeline.planning.runs import RunGroups, inverse_is_there, run_path
from pipeline.shard.segment import Segment, parse_segment
from pipeline.shard.token_store import TokenStore
from pipeline.shard.writer import FileReceipt
from pipeline.state.ledger import Ledger, Receipt

log = logging.getLogger(__name__)

ALONE_ROWS = 1 << 16
"""So few micro-batches are planned over CP ranks in less time than workers compile the kernels."""
COMPILING = "kernels are compiled first"


def plan(
    out: Path,
    scratch: Path,
    chain: ChainEnd,
    config: RunConfig,
    key: str,
    executor: Executor,
    ledger: Ledger,
    reporter: Reporter,
) -> Receipt:
    """Plan a segment, unless the ledger has this plan whole; the stage's receipt.

    Args:
        out: where `plan/` goes, here and below: the set's directory, or where parts wait to be
            published.
        scratch: of this plan (`Workplace.scratch_of`).
        chain: what the segment is added to.
        config: of the segment.
        key: of its plan.
        executor: where tasks run.
        ledger: of the job.
        reporter: where progress goes.
    """
    receipt = ledger.receipt(key, "plan")
    if receipt is not None and _plan_is_there(out, scratch, receipt):
        reporter.line("plan: there already")
        return receipt
    ledger.forget(["plan"])
    if config.packing.policy == "lookahead":
        with reporter.stage("plan", total=None, unit="windows", before=COMPILING) as stage:
            receipt = write_plan(out, scratch, chain, config, searching(executor, stage))
    else:
        with reporter.stage("plan", total=1, unit="stream", before=COMPILING) as stage:
            receipt = write_plan(out, scratch, chain, config)
            stage.advance(1)
    ledger.record(key, "plan", receipt)
    return receipt


def plan_cp(
    job: CPJob,
    plan_key: str,
    segment: Segment,
    executor: Executor,
    ledger: Ledger,
    reporter: Reporter,
) -> list[FileReceipt]:
    """Plan one CP degree for the parts of a segment."""
    out, parts = as_path(job.out), segment.part_numbers
    if segment.steps * segment.num_micro_batches < ALONE_ROWS:
        executor = LocalExecutor()
    units = [Unit(name=f"cp={job.cp_size}/{part}", arguments=(job, part)) for part in parts]
    name = f"cp plan {job.cp_size}"
    with reporter.stage(name, total=len(parts), unit="parts", before=COMPILING) as stage:
        receipts = run_units(
            executor,
            ledger,
            job.key(plan_key),
            _write_cp_part,
            units,
            stage,
            intact=_there_in(out),
        )
    return [FileReceipt.from_dict(receipt) for receipt in receipts]


def move_tokens(
    job: MoveJob, plan_key: str, executor: Executor, ledger: Ledger, reporter: Reporter
) -> list[FileReceipt]:
    """Move the tokens to where the plan says: scatter runs, then assemble shards."""
    root = as_path(job.root)
    key = fingerprint({"plan": plan_key, "dtype": job.dtype, "rows_per_group": job.rows_per_group})
    shards = [Unit(name=f"shard/{part}", arguments=(job, part)) for part in job.parts]
    there = _there_in(root)
    done = (ledger.receipt(key, unit.name) for unit in shards)
    if any(receipt is None or not there(0, receipt) for receipt in done):
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
    with reporter.stage("move: write shards", total=len(shards), unit="shards") as stage:
        receipts = run_units(
            executor,
            ledger,
            key,
            _assemble_shard,
            shards,
            stage,
            intact=there,
        )
    return [FileReceipt.from_dict(receipt) for receipt in receipts]


def move_job(
    out: Path,
    scratch: Path,
    segment: Segment,
    stores: Sequence[TokenStore],
    *,
    run_tokens: int,
    dtype: str,
    rows_per_group: int,
) -> MoveJob:
    """What moving a segment's tokens needs; `stores` are the chain's, `scratch` is the plan's."""
    return MoveJob(
        root=str(out),
        scratch=str(scratch),
        stores=tuple(str(store.directory) for store in stores),
        most_taken=tuple(segment.most_taken(source) for source in range(len(stores))),
        dtype=dtype,
        parts=segment.part_numbers,
        num_groups=RunGroups.of(stores, run_tokens=run_tokens).count,
        rows_per_group=rows_per_group,
    )


def sweep(root: Path, parts: Sequence[FileReceipt]) -> None:
    """Remove plan, shard and CP files that an unfinished build with other settings left."""
    kept = {part.path for part in parts}
    remove_temporary(root)
    for folder in ("plan", "shards", "cp=*"):
        for path in sorted(root.glob(f"{folder}/[0-9]*.parquet")):
            if path.relative_to(root).as_posix() not in kept:
                log.warning("removing %s: left by an unfinished build with other settings", path)
                path.unlink()
        for directory in root.glob(folder):
            remove_temporary(directory)
            if not any(directory.iterdir()):
                directory.rmdir()


def _plan_is_there(root: Path, scratch: Path, receipt: Receipt) -> bool:
    there = _there_in(root)
    parts = parse_segment(receipt["segment"]).part_numbers
    return all(there(0, file) for file in receipt["files"]) and all(
        inverse_is_there(scratch, part) for part in parts
    )


def _there_in(directory: Path) -> Callable[[int, Receipt], bool]:
    """Whether a receipt's file is there, with its size, as `run_units` asks it."""
    sizes = Sizes(directory)
    return lambda _, receipt: sizes.of(receipt["path"]) == receipt["bytes"]


def _write_cp_part(job: CPJob, part: int) -> Receipt:
    return write_cp_part(job, part).as_dict()


def _assemble_shard(job: MoveJob, part: int) -> Receipt:
    return assemble_shard(job, part).as_dict()
