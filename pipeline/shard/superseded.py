"""What a publication replaces, kept by digests for readers of the older manifest.

Where a set grows, several of its files are replaced one by one, manifest.json last. Until then, and
for readers that were opened before, the older manifest holds, and the tables and CP plans that it
vouches for are found here. So a set changes at one moment, the one at which its manifest does.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa

from pipeline.files.links import link_or_copy
from pipeline.shard import schema
from pipeline.shard.digests import sha256_bytes
from pipeline.shard.tables import FormatError, read_bytes, read_table

WORK = ".build"
"""Working state inside a set's directory; no part of the set."""


def superseded(directory: Path, sha256: str) -> Path:
    """Where a file that was replaced is kept, by its digest."""
    return directory / WORK / "superseded" / sha256


def read_set_table(directory: Path, name: str, columns: pa.Schema, sha256: str) -> pa.Table:
    """A table of a set by the digest that its manifest vouches for, also where it was replaced.

    Raises:
        FormatError: as `tables.read_table`, of the table that is there now.
    """
    try:
        return read_table(directory / name, columns, sha256)
    except FormatError:
        try:
            return read_table(superseded(directory, sha256), columns, sha256)
        except FormatError:
            pass
        raise


def is_superseded(directory: Path, manifest: bytes) -> bool:
    """Whether a publication has begun to replace this manifest, its digest first."""
    try:
        return read_bytes(superseded(directory, sha256_bytes(manifest))) == manifest
    except FormatError:
        return False


def part_path(directory: Path, path: str, row_groups_sha256: str) -> Path:
    """Where a part is, as the row_groups.parquet with this digest has it.

    Args:
        directory: of the set, here or remote.
        path: the part, relative to it.
        row_groups_sha256: digest of the table.
    """
    kept = superseded(directory, f"{row_groups_sha256}-parts") / path
    return kept if kept.exists() else directory / path


def keep_superseded(root: Path, parts: Iterable[str]) -> None:
    """Keep what the manifest that is there vouches for; to be called before it is replaced.

    Args:
        root: the set's directory; nothing is done where no set is.
        parts: that are replaced, or new, relative to it.

    Raises:
        FormatError: files.parquet is damaged.
    """
    if not (root / "manifest.json").exists():
        return
    data = read_bytes(root / "manifest.json")
    digests: dict[str, str] = json.loads(data)["digests"]
    files = read_set_table(root, "files.parquet", schema.FILES, digests["files.parquet"])
    listed = zip(files["path"].to_pylist(), files["sha256"].to_pylist(), strict=True)
    steps = {path: sha256 for path, sha256 in listed if path == "steps.parquet"}
    kept = {**digests, **steps, "manifest.json": sha256_bytes(data)}
    for name, sha256 in kept.items():
        link_or_copy(root / name, superseded(root, sha256))
    of_parts = superseded(root, f"{digests['row_groups.parquet']}-parts")
    for path in parts:
        if (root / path).exists():
            link_or_copy(root / path, of_parts / path)
