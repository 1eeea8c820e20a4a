"""The last act: indexes and manifest, so that a directory of parts becomes a set.

The four files are written beside one another and then moved into place; a marker says that they
are complete, so a crash between two moves is finished by the next opener (`recover`). Until
manifest.json, the last, is moved, a set that was there is read as it was: see
`pipeline.shard.superseded`.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from pipeline.files.atomic import move, remove_files, remove_tree, write_atomically
from pipeline.shard import schema
from pipeline.shard.manifest import Manifest
from pipeline.shard.superseded import WORK, keep_superseded, read_set_table
from pipeline.shard.tables import FormatError
from pipeline.shard.writer import FileReceipt, RowGroup, write_table

_STAGED = ("row_groups.parquet", "files.parquet", "manifest.sha256", "manifest.json")
_NAME = re.compile(r"(plan|shards|cp=[1-9][0-9]*)/[0-9]+\.parquet|steps\.parquet|tail\.parquet")

UNFINISHED = "a job is publishing here, or died while it was; run the same command again, or wait"


def publish(
    root: Path,
    manifest: dict[str, Any],
    receipts: Sequence[FileReceipt],
    staged: Sequence[FileReceipt] = (),
) -> None:
    """Write the set's indexes and manifest; afterwards the set exists.

    Args:
        root: the set's directory.
        manifest: every field of FORMAT.md section 6 but `digests`.
        receipts: of the files that are in their places, in any order.
        staged: of the files in `staged_parts(root)`, which move into the set at the same moment.
    """
    ordered = sorted([*receipts, *staged], key=_place)
    recover(root)
    stage = root / WORK / "publish"
    remove_tree(stage)
    tables = {
        "files.parquet": _files_table(ordered),
        "row_groups.parquet": _row_groups_table(ordered),
    }
    named = {name: write_table(table, stage, name).sha256 for name, table in tables.items()}
    text = json.dumps({**manifest, "digests": named}, indent=1, sort_keys=True) + "\n"
    write_atomically(stage / "manifest.json", text.encode())
    digest = hashlib.sha256(text.encode()).hexdigest()
    write_atomically(stage / "manifest.sha256", f"{digest}\n".encode())
    _drop_strays(root, {receipt.path for receipt in staged})
    keep_superseded(root, [name for name, _ in _waiting(root)])
    write_atomically(stage / "complete", b"")
    recover(root)


def _drop_strays(root: Path, names: set[str]) -> None:
    """Remove waiting parts that are not of this publication but of one that never came."""
    remove_files(path for name, path in _waiting(root) if name not in names)


def staged_parts(root: Path) -> Path:
    """Where new parts of a set that exists wait for `publish`, under the set's own paths."""
    return root / WORK / "parts"


def _waiting(root: Path) -> list[tuple[str, Path]]:
    """Parts in `staged_parts`, by the names that they will have."""
    place = staged_parts(root)
    return [(p.relative_to(place).as_posix(), p) for p in sorted(place.rglob("*.parquet"))]


def is_unfinished(root: Path) -> bool:
    """Whether a publication is between two of its moves: its job is at it, or died."""
    return (root / WORK / "publish/complete").exists()


def recover(root: Path) -> None:
    """Finish a publication that was interrupted between two of its moves."""
    stage = root / WORK / "publish"
    if not is_unfinished(root):
        return
    for name, path in _waiting(root):
        move(path, root / name)
    remove_tree(staged_parts(root))
    for name in _STAGED:
        if (stage / name).exists():
            move(stage / name, root / name)
    remove_tree(stage)


def _place(receipt: FileReceipt) -> tuple[int, int, int, str]:
    """The order of files.parquet: plan, shards, CP plans by degree, then the tables."""
    folder, _, name = receipt.path.rpartition("/")
    if not folder:
        return 3, 0, 0, name
    part = int(name.removesuffix(".parquet"))
    if folder.startswith("cp="):
        return 2, int(folder.removeprefix("cp=")), part, ""
    return {"plan": 0, "shards": 1}[folder], 0, part, ""


def _files_table(receipts: Sequence[FileReceipt]) -> pa.Table:
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


def _row_groups_table(receipts: Sequence[FileReceipt]) -> pa.Table:
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


def read_receipts(manifest: Manifest) -> list[FileReceipt]:
    """The receipts that a published set was made from, in the order of files.parquet.

    Raises:
        FormatError: one of the two tables is damaged, or lists a file that is no part of a set.
    """
    root, named = manifest.directory, manifest.digests
    files = read_set_table(root, "files.parquet", schema.FILES, named["files.parquet"])
    for path in files["path"].to_pylist():
        if not _NAME.fullmatch(path or ""):
            raise FormatError(
                f"lists {path!r}, which no set has; it must not be built upon",
                path=root / "files.parquet",
            )
    row_groups = read_set_table(
        root, "row_groups.parquet", schema.ROW_GROUPS, named["row_groups.parquet"]
    )
    groups: dict[str, list[RowGroup]] = {}
    for row in row_groups.to_pylist():
        groups.setdefault(row.pop("path"), []).append(RowGroup(**row))
    return [
        FileReceipt(**row, row_groups=tuple(groups.get(row["path"], ())))
        for row in files.to_pylist()
    ]
