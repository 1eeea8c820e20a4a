"""Writing Parquet parts of a set, and the receipt that says what was written."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.files.atomic import atomic_path
from pipeline.shard import digests


@dataclass(frozen=True, slots=True, kw_only=True)
class RowGroup:
    """Where a row group lies in its file; `row_group` -1 is the footer."""

    row_group: int
    first_step: int
    offset: int
    length: int
    xxh3_128: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FileReceipt:
    """What was written: a row of files.parquet and the rows of row_groups.parquet under it.

    The tables beside the manifest have neither a content digest nor row groups there.
    """

    path: str
    bytes: int
    sha256: str
    content_sha256: str | None
    row_groups: tuple[RowGroup, ...]

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, value: dict[str, Any]) -> FileReceipt:
        groups = tuple(RowGroup(**group) for group in value["row_groups"])
        return cls(**{**value, "row_groups": groups})


def write_parquet(table: pa.Table, path: Path, *, rows_per_group: int | None = None) -> None:
    """Write a local file the way every table of a set is written."""
    pq.write_table(
        table,
        path,
        row_group_size=rows_per_group or max(1, table.num_rows),
        compression="zstd",
        compression_level=1,
        use_dictionary=False,
        write_statistics=False,
    )


@contextmanager
def written(table: pa.Table, path: Path, *, rows_per_group: int | None = None) -> Iterator[Path]:
    """Write a table of a set under a temporary name, which the block has, to read what it wrote.

    The file is at `path` after the block.
    """
    with atomic_path(path) as temporary:
        write_parquet(table, temporary, rows_per_group=rows_per_group)
        yield temporary


def write_table(table: pa.Table, root: Path, name: str) -> FileReceipt:
    """Write a table beside the manifest: `steps.parquet`, `tail.parquet`."""
    with written(table, root / name) as path:
        size, digest = path.stat().st_size, digests.sha256_file(path)
    return FileReceipt(path=name, bytes=size, sha256=digest, content_sha256=None, row_groups=())


def write_part(
    table: pa.Table, root: Path, name: str, *, rows_per_group: int | None = None
) -> FileReceipt:
    """Write one part of the plan, the shards or a CP plan.

    Args:
        table: rows with a `step` column, at least one.
        root: the set's directory.
        name: path below it, with `/`.
        rows_per_group: rows of a row group; all rows in one where not given.
    """
    with written(table, root / name, rows_per_group=rows_per_group) as path:
        steps = table.column("step").to_numpy()
        return FileReceipt(
            path=name,
            bytes=path.stat().st_size,
            sha256=digests.sha256_file(path),
            content_sha256=digests.content_sha256(path),
            row_groups=_row_groups(path, steps, rows_per_group or table.num_rows),
        )


def _row_groups(path: Path, steps: np.ndarray, size: int) -> tuple[RowGroup, ...]:
    """A file's row groups; `steps` are those of its rows, `size` the rows of a group."""
    groups = []
    with path.open("rb") as file:
        for row_group, offset, length in digests.row_group_ranges(path):
            file.seek(offset)
            groups.append(
                RowGroup(
                    row_group=row_group,
                    first_step=int(steps[max(row_group, 0) * size]),
                    offset=offset,
                    length=length,
                    xxh3_128=digests.xxh3_128(file.read(length)),
                )
            )
    return tuple(groups)
