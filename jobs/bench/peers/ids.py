"""What a tool made of a corpus, in three numbers that do not depend on the documents' order.

Every tool ends a document with EOS and no text spells it, so documents can be told apart in any
flat file of ids.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import xxhash

_READ_IDS = 1 << 22


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """Documents, tokens (EOS included), and the sum of the documents' XXH3-64 modulo 2^64."""

    documents: int
    tokens: int
    fingerprint: str


def contents(files: Iterable[Iterator[np.ndarray]], *, eos: int) -> Contents:
    """Count and digest the documents of some files, each a run of chunks of ids.

    Raises:
        ValueError: a file does not end with EOS.
    """
    documents = tokens = total = 0
    for chunks in files:
        rest = np.empty(0, np.uint32)
        for chunk in chunks:
            tokens += len(chunk)
            ids = np.concatenate([rest, chunk.astype(np.uint32)])
            start = 0
            for stop in (np.flatnonzero(ids == eos) + 1).tolist():
                total += xxhash.xxh3_64_intdigest(ids[start:stop].tobytes())
                documents += 1
                start = stop
            rest = ids[start:]
        if len(rest):
            raise ValueError(f"{len(rest)} ids stand after the last EOS")
    return Contents(documents=documents, tokens=tokens, fingerprint=f"{total % 2**64:016x}")


def flat_files(paths: Sequence[Path], dtype: str) -> Iterator[Iterator[np.ndarray]]:
    """Chunks of each file of little-endian ids."""
    for path in paths:
        yield _flat(path, np.dtype(dtype).newbyteorder("<"))


def parquet_files(paths: Sequence[Path], column: str) -> Iterator[Iterator[np.ndarray]]:
    """Chunks of the ids of each Parquet file."""
    for path in paths:
        yield _lists(path, column)


def _flat(path: Path, dtype: np.dtype) -> Iterator[np.ndarray]:
    with path.open("rb") as file:
        while content := file.read(_READ_IDS * dtype.itemsize):
            yield np.frombuffer(content, dtype)


def _lists(path: Path, column: str) -> Iterator[np.ndarray]:
    with pq.ParquetFile(path) as file:
        for batch in file.iter_batches(batch_size=4096, columns=[column]):
            yield batch.column(0).flatten().to_numpy()
