"""The stage before tokenizing where a source has ids: which records repeat one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from jobs.executor import Executor
from jobs.progress import Reporter
from jobs.stamped import check_stamps, is_as_expected, read_stamped
from jobs.units import Unit, run_units
from pipeline.reading.listing import SourceError
from pipeline.reading.splits import Split
from pipeline.settings.documents import SourceConfig
from pipeline.shard.schema import part_name
from pipeline.state.ledger import Ledger, Receipt
from pipeline.stores.duplicates import (
    duplicates_are_there,
    find_duplicates,
    ids_are_there,
    num_buckets,
    write_ids,
)
from pipeline.stores.rejects import stop_on_duplicates


def compare_ids(
    source: SourceConfig,
    key: str,
    scratch: Path,
    splits: Sequence[Split],
    stamps: Sequence[str],
    executor: Executor,
    ledger: Ledger,
    reporter: Reporter,
) -> None:
    """Leave the numbers of records that repeat an id in `scratch`.

    `stamps` says how each split's files were stamped when the driver digested them.

    Raises:
        SourceError: no record has an id, or a file changed while it was read.
        RejectsError: records repeat one, and the source says to stop.
    """
    buckets = num_buckets(sum(split.num_bytes for split in splits))
    units = [
        Unit(name=f"ids/{part_name(split.number)}", arguments=(split, source, scratch, buckets))
        for split in splits
    ]
    with reporter.stage(f"ids {source.name}", total=len(splits), unit="splits") as stage:
        found = run_units(
            executor,
            ledger,
            key,
            _write_ids,
            units,
            stage,
            intact=lambda index, receipt: (
                is_as_expected(receipt, stamps[index]) and ids_are_there(scratch, receipt["split"])
            ),
            check=lambda index, receipt: check_stamps(
                receipt, stamps[index], source.name, splits[index]
            ),
        )
    ids = sum(receipt["ids"] for receipt in found)
    without = sum(receipt["without_id"] for receipt in found)
    if without and not ids:
        raise SourceError(
            f"source {source.name!r}: no record has a string or a whole number in "
            f"{source.id_column!r}; correct id_column or leave it out"
        )
    if without:
        reporter.line(f"ids {source.name}: {without:,} records have none")
    compared = _compare(key, scratch, len(splits), buckets, executor, ledger, reporter, source)
    count = sum(receipt["duplicates"] for receipt in compared)
    if count and source.duplicate_ids == "stop":
        split, record = min(tuple(r["first"]) for r in compared if r["first"] is not None)
        before = sum(
            receipt["records"]
            for receipt in found[:split]
            if receipt["file"] == splits[split].files[0]
        )
        path = splits[split].names[0]
        stop_on_duplicates(count, source=source.name, path=path, record=before + record)


def _compare(
    key: str,
    scratch: Path,
    num_splits: int,
    buckets: int,
    executor: Executor,
    ledger: Ledger,
    reporter: Reporter,
    source: SourceConfig,
) -> list[Receipt]:
    units = [
        Unit(name=f"repeats/{bucket}", arguments=(scratch, bucket, num_splits))
        for bucket in range(buckets)
    ]
    with reporter.stage(f"compare ids {source.name}", total=buckets, unit="buckets") as stage:
        return run_units(
            executor,
            ledger,
            key,
            find_duplicates,
            units,
            stage,
            intact=lambda _, receipt: duplicates_are_there(scratch, receipt["bucket"]),
        )


def _write_ids(split: Split, source: SourceConfig, scratch: Path, buckets: int) -> Receipt:
    return read_stamped(split, lambda: write_ids(split, source, scratch, buckets))
