"""Megatron's tokenized datasets: a `.idx` that says where documents lie in its `.bin`.

The `.idx`, little-endian (megatron.core.datasets.indexed_dataset): the magic, version 1 (uint64), a
dtype code (uint8), the number of sequences and of document indices (uint64 each); then a length in
tokens (int32) and a byte offset in the `.bin` (int64) a sequence, the first sequence of each
document (int64), which begin with 0 and end with the number of sequences, and in multimodal
datasets a mode (int8) a sequence. A document is its sequences back to back.
"""

from __future__ import annotations

import glob
import os
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from packer.plan import Int64
from pipeline.reading.source_error import SourceError

ENDINGS = (".bin", ".idx")
_MAGIC = b"MMIDIDX\x00\x00"
_HEADER = struct.Struct("<9sQBQQ")
_TYPES = {1: "uint8", 2: "int8", 3: "int16", 4: "int32", 5: "int64", 8: "uint16"}
_FLOATS = (6, 7)  # float32 and float64; old versions number them the other way round
_CHECK_ROWS = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MegatronIndex:
    """A `.idx`, mapped: nothing of it is in memory.

    `lengths` int32 and `pointers` int64 are (sequences,), `first_sequence` int64 (documents + 1,),
    `modes` int8 (sequences,) or empty.
    """

    path: str
    dtype: np.dtype
    lengths: np.ndarray
    pointers: np.ndarray
    first_sequence: np.ndarray
    modes: np.ndarray

    @property
    def documents(self) -> int:
        return len(self.first_sequence) - 1

    @property
    def bin_path(self) -> str:
        return partner(self.path)

    @property
    def bin_bytes(self) -> int:
        """Bytes that the `.bin` must have."""
        if not len(self.lengths):
            return 0
        return int(self.pointers[-1]) + int(self.lengths[-1]) * self.dtype.itemsize

    def offset_of(self, document: int) -> int:
        """Where a document begins in the `.bin`, in bytes; its end for `documents`."""
        return int(self.offsets(document, document)[0])

    def offsets(self, start: int, stop: int) -> Int64:
        """Where the documents `[start, stop)` and the end of the last lie, (stop - start + 1,)."""
        first = np.array(self.first_sequence[start : stop + 1], np.int64)
        offsets = np.full(len(first), self.bin_bytes, np.int64)
        inside = first < len(self.pointers)
        offsets[inside] = self.pointers[first[inside]]
        return offsets

    def document_lengths(self, start: int, stop: int) -> Int64:
        """Tokens of the documents `[start, stop)`, (stop - start,)."""
        return np.diff(self.offsets(start, stop)) // self.dtype.itemsize


def open_index(path: str | Path) -> MegatronIndex:
    """Map a `.idx`, checking its header and its size; `check_index` checks the rest.

    Raises:
        SourceError: not a `.idx` of version 1, ids that are not integers, or a wrong size.
    """
    size = os.path.getsize(path)
    with open(path, "rb") as file:
        header = file.read(_HEADER.size)
    if not header.startswith(_MAGIC):
        raise SourceError(
            f"{path} begins with {header[: len(_MAGIC)]!r}, not {_MAGIC!r}; it is not the .idx of "
            "a Megatron dataset"
        )
    if len(header) < _HEADER.size:
        raise SourceError(f"{path} has {size} bytes, less than its header; copy it again")
    _, version, code, sequences, indices = _HEADER.unpack(header)
    if version != 1:
        raise SourceError(f"{path} is of version {version}; only version 1 is known")
    if code in _FLOATS:
        raise SourceError(f"{path} has dtype code {code}: floating-point numbers, not token ids")
    if code not in _TYPES:
        known = ", ".join(f"{number} ({name})" for number, name in _TYPES.items())
        raise SourceError(f"{path} has dtype code {code}; known: {known}")
    without_modes = _HEADER.size + 12 * sequences + 8 * indices
    if not indices or size not in (without_modes, without_modes + sequences):
        raise SourceError(
            f"{path} has {size} bytes, but {sequences} sequences and {indices} document indices "
            f"make {without_modes} ({without_modes + sequences} with modes); copy it again"
        )
    tables, offset = [], _HEADER.size
    num_modes = sequences if size > without_modes else 0
    for kind, count in (
        ("<i4", sequences),
        ("<i8", sequences),
        ("<i8", indices),
        ("i1", num_modes),
    ):
        tables.append(_map(path, kind, offset, count))
        offset += count * np.dtype(kind).itemsize
    return MegatronIndex(
        path=str(path),
        dtype=np.dtype(_TYPES[code]).newbyteorder("<"),
        lengths=tables[0],
        pointers=tables[1],
        first_sequence=tables[2],
        modes=tables[3],
    )


def check_index(index: MegatronIndex) -> None:
    """Read a whole `.idx` once, in blocks, and compare it with itself; the `.bin` is not needed.

    Raises:
        SourceError: sequences that do not lie end to end, documents that do not take them in
            order, or modes other than text.
    """
    expected = 0
    for start in range(0, len(index.lengths), _CHECK_ROWS):
        lengths = index.lengths[start : start + _CHECK_ROWS].astype(np.int64)
        stops = expected + np.cumsum(lengths * index.dtype.itemsize)
        pointers = index.pointers[start : start + _CHECK_ROWS]
        wrong = (lengths < 0) | (pointers != stops - lengths * index.dtype.itemsize)
        for place in np.flatnonzero(wrong)[:1]:
            raise SourceError(
                f"{index.path}: sequence {start + place} has {lengths[place]} tokens at byte "
                f"{pointers[place]}, but sequences must lie end to end; build the dataset again"
            )
        expected = int(stops[-1])
        modes = index.modes[start : start + _CHECK_ROWS]
        for place in np.flatnonzero(modes)[:1]:
            raise SourceError(
                f"{index.path} is multimodal: sequence {start + place} has mode {modes[place]}; "
                "only text (mode 0) can be packed"
            )
    _check_documents(index)


def check_bin(index: MegatronIndex) -> None:
    """Compare the size of the `.bin` with what the `.idx` says.

    Raises:
        SourceError: another size.
    """
    size = os.path.getsize(index.bin_path)
    if size != index.bin_bytes:
        state = "is truncated" if size < index.bin_bytes else "is longer than its .idx says"
        raise SourceError(
            f"{index.bin_path} {state}: it has {size} bytes, and {index.path} says "
            f"{index.bin_bytes}; copy or build both again"
        )


def read_bin(index: MegatronIndex, start: int, stop: int) -> np.ndarray:
    """The ids in the bytes `[start, stop)` of the `.bin`, of the index's dtype.

    Raises:
        SourceError: the `.bin` ends before them.
    """
    count = (stop - start) // index.dtype.itemsize
    ids = np.fromfile(index.bin_path, index.dtype, count, offset=start)
    if len(ids) < count:
        raise SourceError(f"{index.bin_path} ends before byte {stop}, which {index.path} names")
    return ids


def cuts(index: MegatronIndex, num_bytes: int) -> Iterator[tuple[int, int]]:
    """Ranges of documents of at most `num_bytes` of the `.bin` each, or of one larger document."""
    start = 0
    while start < index.documents:
        limit = index.offset_of(start) + num_bytes
        low, high = start + 1, index.documents  # the last stop that is within the limit
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if index.offset_of(middle) <= limit else (low, middle - 1)
        yield start, low
        start = low


def listed(path: str) -> str:
    """The path or glob to list files by; where it names pairs by their prefixes, their `.idx`."""
    found = os.path.exists(path) or any(
        match.endswith(ENDINGS) for match in glob.iglob(path, recursive=True)
    )
    return path if found else f"{path}.idx"


def pairs(root: str, names: Iterable[str]) -> list[str]:
    """Both files of every pair that `names`, relative to `root`, hold one file of.

    Raises:
        SourceError: a pair with a file missing.
    """
    prefixes = {name[: -len(ENDINGS[0])] for name in names if name.endswith(ENDINGS)}
    files = [prefix + ending for prefix in prefixes for ending in ENDINGS]
    for name in sorted(files):
        path = os.path.join(root, name)
        if not os.path.isfile(path):
            raise SourceError(f"{path} is missing beside {partner(path)}; a dataset is both files")
    return files


def partner(path: str) -> str:
    """The other file of a pair."""
    stem, ending = os.path.splitext(path)
    return stem + ENDINGS[1 - ENDINGS.index(ending)]


def _map(path: str | Path, kind: str, offset: int, count: int) -> np.ndarray:
    if not count:
        return np.empty(0, kind)  # nothing cannot be mapped
    return np.memmap(path, kind, mode="r", offset=offset, shape=(count,)).view(np.ndarray)


def _check_documents(index: MegatronIndex) -> None:
    first, sequences = index.first_sequence, len(index.lengths)
    if first[0] != 0 or first[-1] != sequences:
        raise SourceError(
            f"{index.path}: its documents take the sequences {first[0]} to {first[-1]}, but it has "
            f"{sequences}; build the dataset again"
        )
    for start in range(0, index.documents, _CHECK_ROWS):
        taken = np.diff(first[start : start + _CHECK_ROWS + 1])
        for place in np.flatnonzero(taken < 0)[:1]:
            raise SourceError(
                f"{index.path}: document {start + place} ends before it begins; build the dataset "
                "again"
            )
