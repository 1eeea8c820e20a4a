"""Records whose id an earlier record has, found in a pass of its own before any is tokenized.

An external sort in two rounds, so that nothing holds all ids: every split writes the hashes of its
ids by bucket (a part of the hash); every bucket is then sorted, and writes which records repeat an
id, by split. A record's place is (split, number in the split), so what counts as first is the
documents' order, whoever wrote what when. Only records with an acceptable text take part.

Two ids are one where their 128-bit hashes are.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from pipeline.files.atomic import atomic_path
from pipeline.reading.records.read import read_records
from pipeline.reading.splits import Split
from pipeline.settings.documents import SourceConfig
from pipeline.shard.schema import part_name

FOLDER = "ids"
"""In the scratch of making a store, until the store is finished."""
_BUCKET_BYTES = 1 << 30  # of input: some millions of ids, some hundred megabytes
_MAX_BUCKETS = 1024
_CHUNK_IDS = 1 << 18
_ID = np.dtype([("high", "<u8"), ("low", "<u8"), ("record", "<i8")])


def num_buckets(input_bytes: int) -> int:
    """How many buckets suit a source of so many bytes."""
    return min(1 + input_bytes // _BUCKET_BYTES, _MAX_BUCKETS)


def write_ids(split: Split, source: SourceConfig, directory: Path, buckets: int) -> dict[str, Any]:
    """Write the hashes of a split's ids, ordered by bucket in chunks.

    Args:
        split: what to read.
        source: names the id's column.
        directory: the scratch of making the store, on a disk.
        buckets: from `num_buckets`.

    Returns:
        `split`, `file` (its first), `records`, `ids`, and `without_id` (accepted records that have
        none).
    """
    offsets: list[np.ndarray] = []
    total = 0
    counts = (0, 0)
    with atomic_path(_path(directory, split.number, "ids")) as path, path.open("wb") as file:
        for chunk, so_far in _chunks(split, source):
            counts = so_far
            bucket = _bucket_of(chunk["high"], buckets)
            ordered = chunk[np.argsort(bucket, kind="stable")]
            sizes = np.bincount(bucket, minlength=buckets)
            offsets.append(total + np.concatenate([[0], np.cumsum(sizes)]))
            file.write(ordered.tobytes())
            total += len(chunk)
    table = np.array(offsets, np.int64).reshape(-1, buckets + 1)
    with atomic_path(_path(directory, split.number, "offsets")) as path, path.open("wb") as file:
        np.save(file, table)
    return {
        "split": split.number,
        "file": split.files[0],
        "records": counts[1],
        "ids": total,
        "without_id": counts[0] - total,
    }


def ids_are_there(directory: Path, split: int) -> bool:
    """Whether a split's ids have been written."""
    return all(_path(directory, split, kind).is_file() for kind in ("ids", "offsets"))


def find_duplicates(directory: Path, bucket: int, num_splits: int) -> dict[str, Any]:
    """Sort a bucket of all splits and write the records that repeat an id.

    Args:
        directory: the scratch of making the store, on a disk.
        bucket: which.
        num_splits: of the source.

    Returns:
        `bucket`, `duplicates`, and `first`: (split, record) of the first of them, or None.
    """
    parts, splits = [np.empty(0, _ID)], [np.empty(0, np.int64)]
    for split in range(num_splits):
        found = _bucket_ids(directory, split, bucket)
        parts.append(found)
        splits.append(np.full(len(found), split, np.int64))
    ids, split_of = np.concatenate(parts), np.concatenate(splits)
    order = np.lexsort((ids["low"], ids["high"]))  # stable: of one id, places stay ascending
    ids, split_of = ids[order], split_of[order]
    same = (ids["high"][1:] == ids["high"][:-1]) & (ids["low"][1:] == ids["low"][:-1])
    again = np.flatnonzero(same) + 1
    record, split_of = ids["record"][again], split_of[again]
    order = np.lexsort((record, split_of))
    record, split_of = record[order], split_of[order]
    offsets = np.concatenate([[0], np.cumsum(np.bincount(split_of, minlength=num_splits))])
    for kind, array in (("repeats", record), ("repeats-offsets", offsets)):
        with atomic_path(_path(directory, bucket, kind)) as path, path.open("wb") as file:
            np.save(file, array.astype(np.int64))
    first = [int(split_of[0]), int(record[0])] if len(record) else None
    return {"bucket": bucket, "duplicates": len(record), "first": first}


def duplicates_are_there(directory: Path, bucket: int) -> bool:
    """Whether a bucket's repeats have been written."""
    kinds = ("repeats", "repeats-offsets")
    return all(_path(directory, bucket, kind).is_file() for kind in kinds)


def duplicates_of(directory: Path, split: int) -> np.ndarray:
    """Numbers of a split's records whose id an earlier record has, ascending, int64.

    Raises:
        FileNotFoundError: the passes before have not been made.
    """
    found = []
    paths = sorted((directory / FOLDER).glob("*.repeats.npy"))
    if not paths:
        raise FileNotFoundError(f"{directory / FOLDER} holds no repeats; find duplicates first")
    for path in paths:
        offsets = np.load(_sibling(path), mmap_mode="r")
        start, stop = int(offsets[split]), int(offsets[split + 1])
        if stop > start:
            found.append(np.array(np.load(path, mmap_mode="r")[start:stop]))
    return np.sort(np.concatenate(found)) if found else np.empty(0, np.int64)


def _chunks(split: Split, source: SourceConfig) -> Iterator[tuple[np.ndarray, tuple[int, int]]]:
    """Hashes of a split's ids, a chunk at a time, with the accepted and all records so far."""
    waiting: list[tuple[int, int, int]] = []
    accepted = records = 0
    for batch in read_records(split, source):
        records = batch.records
        accepted += len(batch.texts)
        for record, id_ in zip(batch.record, batch.ids, strict=True):
            if id_ is not None:
                value = xxhash.xxh3_128_intdigest(id_.encode())
                waiting.append((value >> 64, value & (2**64 - 1), record))
        if len(waiting) >= _CHUNK_IDS:
            yield np.array(waiting, _ID), (accepted, records)
            waiting = []
    yield np.array(waiting, _ID), (accepted, records)


def _bucket_of(high: np.ndarray, buckets: int) -> np.ndarray:
    return (high % np.uint64(buckets)).astype(np.int64)


def _bucket_ids(directory: Path, split: int, bucket: int) -> np.ndarray:
    offsets = np.load(_path(directory, split, "offsets"), mmap_mode="r")
    parts = []
    with _path(directory, split, "ids").open("rb") as file:
        for row in offsets:
            start, count = int(row[bucket]), int(row[bucket + 1] - row[bucket])
            file.seek(start * _ID.itemsize)
            parts.append(np.fromfile(file, _ID, count))
    return np.concatenate(parts) if parts else np.empty(0, _ID)


def _path(directory: Path, number: int, kind: str) -> Path:
    ending = "bin" if kind == "ids" else "npy"
    return directory / FOLDER / f"{part_name(number)}.{kind}.{ending}"


def _sibling(repeats: Path) -> Path:
    return repeats.with_name(repeats.name.replace(".repeats.", ".repeats-offsets."))
