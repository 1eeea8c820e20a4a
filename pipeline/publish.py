"""The last act: indexes and manifest, so that a directory of parts becomes a set.

The four files are written beside one another and then moved into place; a marker says that they
are complete, so a crash between two moves is finished by the next opener (`recover`).
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.shard import digests, schema
from pipeline.shard.atomic import write_atomically
from pipeline.shard.writer import PartReceipt, RowGroup, write_parquet

_STAGED = ("row_groups.parquet", "files.parquet", "manifest.sha256", "manifest.json")
WORK = ".build"
"""Working state inside a set's directory; no part of the set."""


def publish(root: Path, manifest: dict[str, Any], receipts: Sequence[PartReceipt]) -> None:
    """Write the set's indexes and manifest; afterwards the set exists.

    Args:
        root: the set's directory.
        manifest: every field of FORMAT.md section 6 but `digests`.
        receipts: of every file of the set, in any order.
    """
    ordered = sorted(receipts, key=_place)
    recover(root)
    stage = root / WORK / "publish"
    shutil.rmtree(stage, ignore_errors=True)
    stage.mkdir(parents=True)
    write_parquet(_files_table(ordered), stage / "files.parquet")
    write_parquet(_row_groups_table(ordered), stage / "row_groups.parquet")
    named = {
        name: digests.sha256_file(stage / name) for name in ("files.parquet", "row_groups.parquet")
    }
    text = json.dumps({**manifest, "digests": named}, indent=1, sort_keys=True) + "\n"
    write_atomically(stage / "manifest.json", text.encode())
    digest = hashlib.sha256(text.encode()).hexdigest()
    write_atomically(stage / "manifest.sha256", f"{digest}\n".encode())
    write_atomically(stage / "complete", b"")
    recover(root)


def recover(root: Path) -> None:
    """Finish a publication that was interrupted between two of its moves."""
    stage = root / WORK / "publish"
    if not (stage / "complete").exists():
        return
    for name in _STAGED:
        if (stage / name).exists():
            os.replace(stage / name, root / name)
    shutil.rmtree(stage)


def _place(receipt: PartReceipt) -> tuple[int, int, str]:
    """The order of files.parquet: plan, shards, CP plans by degree, then the tables."""
    folder = receipt.path.rpartition("/")[0]
    if folder.startswith("cp="):
        return 2, int(folder.removeprefix("cp=")), receipt.path
    return {"plan": 0, "shards": 1, "": 3}[folder], 0, receipt.path


def _files_table(receipts: Sequence[PartReceipt]) -> pa.Table:
    rows = [
        {
            "path": receipt.path,
            "bytes": receipt.bytes,
            "sha256": receipt.sha256,
            "content_sha256": receipt.content_sha256,
        }
        for receipt in receipts
    ]
    return pa.Table.from_pylist(rows, schema=schema.FILES)


def _row_groups_table(receipts: Sequence[PartReceipt]) -> pa.Table:
    rows = [
        {
            "path": receipt.path,
            "row_group": group.row_group,
            "first_step": group.first_step,
            "offset": group.offset,
            "length": group.length,
            "xxh3_128": group.xxh3_128,
        }
        for receipt in receipts
        for group in receipt.row_groups
    ]
    return pa.Table.from_pylist(rows, schema=schema.ROW_GROUPS)


def read_receipts(root: Path) -> list[PartReceipt]:
    """The receipts that a published set was made from, in the order of files.parquet.

    Its tables must have been checked (`load_manifest`).
    """
    groups: dict[str, list[RowGroup]] = {}
    for row in pq.read_table(root / "row_groups.parquet").to_pylist():
        groups.setdefault(row.pop("path"), []).append(RowGroup(**row))
    return [
        PartReceipt(**row, row_groups=tuple(groups.get(row["path"], ())))
        for row in pq.read_table(root / "files.parquet").to_pylist()
    ]
