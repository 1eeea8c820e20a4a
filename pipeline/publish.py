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


def publish(
    root: Path, manifest: dict[str, Any], parts: Sequence[PartReceipt], tables: Sequence[str]
) -> None:
    """Write the set's indexes and manifest; afterwards the set exists.

    Args:
        root: the set's directory.
        manifest: every field of FORMAT.md section 6 but `digests`.
        parts: receipts of the plan, the shards and the CP plans, in the order of files.parquet.
        tables: other files of the set, relative to `root`.
    """
    recover(root)
    stage = root / WORK / "publish"
    shutil.rmtree(stage, ignore_errors=True)
    stage.mkdir(parents=True)
    write_parquet(_files_table(root, parts, tables), stage / "files.parquet")
    write_parquet(_row_groups_table(parts), stage / "row_groups.parquet")
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


def _files_table(root: Path, parts: Sequence[PartReceipt], tables: Sequence[str]) -> pa.Table:
    rows = [
        {
            "path": part.path,
            "bytes": part.bytes,
            "sha256": part.sha256,
            "content_sha256": part.content_sha256,
        }
        for part in parts
    ]
    for name in tables:
        size, digest = (root / name).stat().st_size, digests.sha256_file(root / name)
        rows.append({"path": name, "bytes": size, "sha256": digest, "content_sha256": None})
    return pa.Table.from_pylist(rows, schema=schema.FILES)


def _row_groups_table(parts: Sequence[PartReceipt]) -> pa.Table:
    rows = [
        {
            "path": part.path,
            "row_group": group.row_group,
            "first_step": group.first_step,
            "offset": group.offset,
            "length": group.length,
            "xxh3_128": group.xxh3_128,
        }
        for part in parts
        for group in part.row_groups
    ]
    return pa.Table.from_pylist(rows, schema=schema.ROW_GROUPS)


def read_receipts(root: Path) -> list[PartReceipt]:
    """The receipts that a published set was made from, in the order of files.parquet."""
    groups: dict[str, list[RowGroup]] = {}
    for row in pq.read_table(root / "row_groups.parquet").to_pylist():
        groups.setdefault(row.pop("path"), []).append(RowGroup(**row))
    return [
        PartReceipt(**row, row_groups=tuple(groups[row["path"]]))
        for row in pq.read_table(root / "files.parquet").to_pylist()
        if row["path"] in groups
    ]
