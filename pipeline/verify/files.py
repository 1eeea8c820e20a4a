"""Every file of the set is the one whose digest is on record."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.files.contents import map_array, parquet_source
from pipeline.publish import UNFINISHED, WORK, is_unfinished
from pipeline.shard import schema
from pipeline.shard.digests import (
    ByteRange,
    content_sha256,
    row_group_ranges,
    sha256_file,
    xxh3_128,
)
from pipeline.shard.manifest import Manifest
from pipeline.shard.tables import FormatError, read_bytes, read_table
from pipeline.verify.result import InOrder, Progress, VerifyError

TABLES = ("steps.parquet", "tail.parquet")
"""Files of the set that files.parquet lists beside the parts."""
_MANIFEST_FILES = ("manifest.json", "manifest.sha256", "files.parquet", "row_groups.parquet")


@dataclass(frozen=True, slots=True)
class FileCounts:
    """What `check_files` went through: all files, and the bytes and row groups that it read."""

    files: int
    bytes: int
    row_groups: int
    all_bytes: int
    """Of all files, read or not."""
    pieces: int
    """In the rows of the plan parts that were read; an empty row counts as one."""


@dataclass(frozen=True, slots=True)
class _Record:
    """A row of files.parquet, with its rows of row_groups.parquet."""

    path: str
    bytes: int
    sha256: str
    content_sha256: str | None
    ranges: list[ByteRange]
    first_steps: list[int]
    digests: list[str]


def check_files(
    manifest: Manifest,
    progress: Progress,
    in_order: InOrder = map,
    parts: Collection[int] | None = None,
) -> FileCounts:
    """Size, digests, row groups and completeness of all files but the token stores'.

    `load_manifest` has checked manifest.json, files.parquet and steps.parquet by then.

    Args:
        manifest: of the set.
        progress: told of each file that is read.
        in_order: maps files.
        parts: numbers of the parts that are read, the others have their size checked; None for all.

    Raises:
        VerifyError: the first file that is missing, unlisted, damaged or another one.
    """
    root = manifest.directory
    digest = str(manifest.digests.get("files.parquet"))
    files = read_table(root / "files.parquet", schema.FILES, digest)
    _check_listing(manifest, files.column("path").to_pylist())
    records = _records(manifest, files)
    own_bytes = sum((root / name).stat().st_size for name in _MANIFEST_FILES)
    read = [record for record in records if parts is None or _is_of(record, parts)]
    if parts is not None:
        for record in records:
            _check_size(root / record.path, record)
    pieces = 0
    for done, found in enumerate(in_order(_check_file, ((root / r.path, r) for r in read))):
        progress("files", done, len(read))
        pieces += found
    progress("files", len(read), len(read))
    return FileCounts(
        files=len(_MANIFEST_FILES) + len(records),
        bytes=own_bytes + sum(record.bytes for record in read),
        row_groups=sum(max(0, len(record.ranges) - 1) for record in read),
        all_bytes=own_bytes + sum(record.bytes for record in records),
        pieces=pieces,
    )


def check_published(manifest: Manifest) -> None:
    """The manifest is the one that was published last, and nothing is published at this moment.

    Raises:
        VerifyError: it is not; readers have the set of before meanwhile.
    """
    root = manifest.directory
    if is_unfinished(root):
        raise VerifyError(UNFINISHED, path=root / WORK / "publish")
    found = sha256_file(root / "manifest.json")
    if read_bytes(root / "manifest.sha256").decode("ascii", "replace").strip() != found:
        raise VerifyError(
            f"does not hold {found}, which is manifest.json's", path=root / "manifest.sha256"
        )


def _is_of(record: _Record, parts: Collection[int]) -> bool:
    return record.path in TABLES or int(Path(record.path).stem) in parts


def _records(manifest: Manifest, files: pa.Table) -> list[_Record]:
    root = manifest.directory
    digest = str(manifest.digests.get("row_groups.parquet"))
    groups = read_table(root / "row_groups.parquet", schema.ROW_GROUPS, digest)
    group_paths = groups.column("path").to_pylist()
    records, place = [], 0
    for entry in files.to_pylist():
        start = place
        while place < len(group_paths) and group_paths[place] == entry["path"]:
            place += 1
        records.append(_record(entry, groups.slice(start, place - start)))
    if place != len(group_paths):
        raise VerifyError(
            f"row {place} is of {group_paths[place]}; paths must stand in the order of "
            "files.parquet, and only those",
            path=root / "row_groups.parquet",
        )
    return records


def _record(entry: dict[str, object], groups: pa.Table) -> _Record:
    columns = {name: groups.column(name).to_pylist() for name in groups.column_names}
    ranges = zip(columns["row_group"], columns["offset"], columns["length"], strict=True)
    return _Record(
        path=str(entry["path"]),
        bytes=int(str(entry["bytes"])),
        sha256=str(entry["sha256"]),
        content_sha256=None if entry["content_sha256"] is None else str(entry["content_sha256"]),
        ranges=[ByteRange(*values) for values in ranges],
        first_steps=columns["first_step"],
        digests=columns["xxh3_128"],
    )


def _check_listing(manifest: Manifest, listed: list[str]) -> None:
    """files.parquet lists what the manifest tells of, once, and no other part lies beside it."""
    root = manifest.directory
    folders = ["plan", "shards", *(f"cp={size}" for size in manifest.cp_sizes)]
    names = [f"{schema.part_name(part)}.parquet" for part in range(manifest.num_parts)]
    expected = {f"{folder}/{name}" for folder in folders for name in names} | set(TABLES)
    listing = root / "files.parquet"
    if len(set(listed)) != len(listed):
        raise VerifyError("lists a file twice", path=listing)
    if missing := sorted(expected - set(listed)):
        raise VerifyError(f"does not list {missing[0]}, of which manifest.json tells", path=listing)
    if more := sorted(set(listed) - expected):
        raise VerifyError(f"lists {more[0]}, of which manifest.json does not tell", path=listing)
    for pattern in ("plan/*.parquet", "shards/*.parquet", "cp=*/*.parquet"):
        for path in sorted(root.glob(pattern)):
            if path.relative_to(root).as_posix() not in expected:
                raise VerifyError("is not listed in files.parquet; remove it", path=path)


def _check_size(path: Path, record: _Record) -> None:
    if not path.is_file():
        raise VerifyError("is missing", path=path)
    size = path.stat().st_size
    if size != record.bytes:
        raise VerifyError(f"has {size} bytes, files.parquet says {record.bytes}", path=path)


def _check_file(unit: tuple[Path, _Record]) -> int:
    """All that is on record of a file; how many pieces it holds, if it is of the plan."""
    path, record = unit
    _check_size(path, record)
    if sha256_file(path) != record.sha256:
        raise VerifyError(
            f"its bytes are not those of SHA-256 {record.sha256} in files.parquet; restore it, or "
            "build it again",
            path=path,
            row_group=_damaged(path, record),
        )
    if record.path in TABLES:
        if record.content_sha256 is not None or record.ranges:
            raise VerifyError("has a content digest or row groups on record", path=path)
        return 0
    _check_row_groups(path, record)
    try:
        content = content_sha256(path)
    except MemoryError:  # Arrow's is an ArrowException too, and says nothing of the file
        raise
    except (pa.ArrowException, OSError, ValueError) as error:
        raise VerifyError(f"has no content digest: {error}", path=path) from error
    if content != record.content_sha256:
        raise VerifyError(
            f"its content digest is not {record.content_sha256}, as files.parquet says", path=path
        )
    return _num_pieces(path) if record.path.startswith("plan/") else 0


def _num_pieces(path: Path) -> int:
    """Entries of the lists of a plan part, from its footer; 0 where it is not like the format."""
    metadata = pq.read_metadata(parquet_source(path))
    names = [metadata.schema.column(place).path for place in range(metadata.num_columns)]
    places = [place for place, name in enumerate(names) if name.startswith("doc_id.")]
    groups = range(metadata.num_row_groups)
    return sum(metadata.row_group(group).column(at).num_values for at in places for group in groups)


def _check_row_groups(path: Path, record: _Record) -> None:
    """row_groups.parquet tells the truth of an intact file."""
    try:
        ranges = row_group_ranges(path)
    except MemoryError:  # Arrow's is an ArrowException too, and says nothing of the file
        raise
    except (pa.ArrowException, OSError, ValueError) as error:
        raise VerifyError(f"is not Parquet as the format has it: {error}", path=path) from error
    if ranges != record.ranges:
        raise VerifyError("row_groups.parquet places its row groups elsewhere", path=path)
    group = _damaged(path, record)
    if group is not None:
        raise VerifyError("row_groups.parquet has another digest", path=path, row_group=group)
    with pq.ParquetFile(parquet_source(path)) as file:
        steps = file.read(columns=["step"]).column("step").to_numpy()
        groups = range(file.num_row_groups)
        rows = [file.metadata.row_group(group).num_rows for group in groups]
    first_rows = [*(np.cumsum(rows) - rows).tolist(), 0]
    for row, first_step, place in zip(first_rows, record.first_steps, ranges, strict=True):
        if steps[row] != first_step:
            raise VerifyError(
                f"row_groups.parquet has first step {first_step}, it is {steps[row]}",
                path=path,
                row_group=place.row_group,
            )


def _damaged(path: Path, record: _Record) -> int | None:
    """The first row group whose bytes differ from their digest; None where none does."""
    data = map_array(path, np.dtype(np.uint8))
    for (group, offset, length), digest in zip(record.ranges, record.digests, strict=True):
        if xxh3_128(data[offset : offset + length].data) != digest:
            return group
    return None


def as_verify_error(error: FormatError) -> VerifyError:
    """The same offence, as a verification's."""
    verify_error = VerifyError("", path=error.path, row_group=error.row_group)
    verify_error.args = error.args
    return verify_error
