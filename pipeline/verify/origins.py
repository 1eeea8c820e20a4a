"""Where a source's records are: the places that documents, rejects and notes claim in its files.

A *place* is a row of inputs.parquet and a record's number in that file. Documents have ascending
places, each part those between its first and the next part's, and no record is both accepted and
refused. A blank line of JSONL is neither; in files of the other formats every record is one of the
two, so there a part begins exactly where the one before it ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa

from pipeline.shard.manifest import Manifest
from pipeline.verify.result import VerifyError

_MOST_RECORDS = 1 << 62
_WHOLE_FORMATS = ("parquet", "arrow", "datasets", "megatron")
_WHOLE_ENDINGS = (".parquet", ".arrow", ".feather", ".ipc")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Places:
    """Places, (records,) each, int64."""

    file: np.ndarray
    record: np.ndarray

    def between(self, start: tuple[int, int], stop: tuple[int, int]) -> Places:
        """Those of ascending places that are in `[start, stop)`."""
        part = slice(self._before(start), self._before(stop))
        return Places(file=self.file[part], record=self.record[part])

    def _before(self, place: tuple[int, int]) -> int:
        first, last = np.searchsorted(self.file, [place[0], place[0] + 1]).tolist()
        return first + int(np.searchsorted(self.record[first:last], place[1]))

    def ascend(self, *, strictly: bool = True) -> np.ndarray:
        """Whether each but the first comes behind the one before it, (records - 1,)."""
        before, after = self.record[:-1], self.record[1:]
        later = after > before if strictly else after >= before
        return (self.file[1:] > self.file[:-1]) | ((self.file[1:] == self.file[:-1]) & later)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartOrigins:
    """What a store's tables say of the places of one part.

    Args:
        num_inputs: rows of inputs.parquet.
        start: the part's first place.
        stop: the next part's; behind the last file, of the last part.
        refused: the rejects in between.
        noted: the notes in between.
        is_whole: every record of the part's first file is accepted or refused.
    """

    num_inputs: int
    start: tuple[int, int]
    stop: tuple[int, int]
    refused: Places
    noted: Places
    is_whole: bool


def part_origins(
    tables: dict[str, pa.Table], root: Path, file_format: str | None
) -> list[PartOrigins]:
    """Check the places in a store's tables, and share them out over its parts.

    Args:
        tables: the store's, by file name.
        root: its directory.
        file_format: the source's setting; None where it is not known.

    Raises:
        VerifyError: parts that do not follow each other, or a reject or note where no part is.
    """
    names = tables["inputs.parquet"].column("path").to_pylist()
    rows = {name: row for row, name in enumerate(names)}
    if len(rows) != len(names):
        raise VerifyError("lists a path twice", path=root / "inputs.parquet")
    starts = _part_starts(tables["parts.parquet"], len(names), root / "parts.parquet")
    listed = {
        name: _listed(tables[name], rows, starts, root / name, strictly=name == "rejects.parquet")
        for name in ("rejects.parquet", "notes.parquet")
        if name in tables
    }
    nothing = Places(file=np.empty(0, np.int64), record=np.empty(0, np.int64))
    refused, noted = listed["rejects.parquet"], listed.get("notes.parquet", nothing)
    return [
        PartOrigins(
            num_inputs=len(names),
            start=start,
            stop=stop,
            refused=refused.between(start, stop),
            noted=noted.between(start, stop),
            is_whole=_is_whole(names[start[0]], file_format),
        )
        for start, stop in zip(starts, [*starts[1:], (len(names), 0)], strict=True)
    ]


def _part_starts(parts: pa.Table, num_inputs: int, path: Path) -> list[tuple[int, int]]:
    """The first place of each part: they ascend, and begin with record 0 of each file."""
    file, record = (parts.column(name).to_numpy() for name in ("file", "first_record"))
    starts = Places(file=file, record=record)
    laws = (
        ((file >= 0) & (file < num_inputs), "file is none of inputs.parquet"),
        ((record >= 0) & (record < _MOST_RECORDS), "first_record is no number of a record"),
        (
            (np.diff(file, prepend=-1) == 0) | (record == 0),
            "first_record must be 0, no earlier part has its file",
        ),
        (
            np.concatenate([[True], starts.ascend(strictly=False)])[: len(file)],
            "it begins before the part before it",
        ),
    )
    for good, message in laws:
        if not good.all():
            at = int(np.argmin(good))
            raise VerifyError(
                f"part {at}: {message}; file is {file[at]}, first_record {record[at]}", path=path
            )
    return list(zip(file.tolist(), record.tolist(), strict=True))


def _listed(
    table: pa.Table,
    rows: dict[str, int],
    starts: Sequence[tuple[int, int]],
    path: Path,
    *,
    strictly: bool,
) -> Places:
    """The places of rejects or notes: in files that there are, ascending, none before all parts."""
    names = table.column("path").to_pylist()
    places = Places(
        file=np.array([rows.get(name, -1) for name in names], np.int64),
        record=table.column("record").to_numpy(),
    )
    ascending = np.concatenate([[True], places.ascend(strictly=strictly)])[: len(names)]
    for good, message in (
        (places.file >= 0, "its path is none of inputs.parquet"),
        ((places.record >= 0) & (places.record < _MOST_RECORDS), "its record is no number of one"),
        (ascending, "it must stand behind the row before it, by file and record"),
    ):
        if not good.all():
            at = int(np.argmin(good))
            raise VerifyError(
                f"row {at}: {message}; path is {names[at]!r}, record {places.record[at]}", path=path
            )
    if len(names) and (not starts or (int(places.file[0]), int(places.record[0])) < starts[0]):
        raise VerifyError("row 0: it is before the first part", path=path)
    return places


def check_origins(index: pa.Table, origins: PartOrigins, path: Path) -> None:
    """Check the places of a part's documents.

    Args:
        index: of the part.
        origins: what the store's tables say of it.
        path: of the index.

    Raises:
        VerifyError: the first document, reject or note that is where it cannot be.
    """
    columns = [index.column(name) for name in ("file", "record")]
    if any(column.null_count for column in columns):
        raise VerifyError("holds a null", path=path)
    file, record = (column.to_numpy() for column in columns)
    first_file, first_record = origins.start
    if len(file) and (file.min() < 0 or file.max() >= origins.num_inputs):
        raise VerifyError("names an input that inputs.parquet lacks", path=path)
    if len(file) and (record.min() < 0 or record.max() >= _MOST_RECORDS):
        raise VerifyError("has a record whose number cannot be", path=path)
    found = Places(file=file, record=record + np.where(file == first_file, first_record, 0))
    if len(wrong := np.flatnonzero(~found.ascend())):
        _fail(wrong[0] + 1, found, "does not come behind the document before it", path)
    if len(file) and file[0] < first_file:
        _fail(0, found, f"is before the part's first file, {first_file}", path)
    if len(file) and (int(file[-1]), int(found.record[-1])) >= origins.stop:
        message = f"is not before record {origins.stop[1]} of file {origins.stop[0]}"
        _fail(len(file) - 1, found, f"{message}, with which the next part begins", path)
    refused = _are_among(found, origins.refused)
    if refused.any():
        _fail(int(np.argmax(refused)), found, "is a document, and refused in rejects.parquet", path)
    noted = _are_among(origins.noted, found)
    if not noted.all():
        at, notes = int(np.argmin(noted)), origins.noted
        raise VerifyError(
            f"has no document of record {notes.record[at]} of file {notes.file[at]}, of which "
            "notes.parquet has a note",
            path=path,
        )
    if origins.is_whole:
        _check_whole(found, origins, path)


def _check_whole(found: Places, origins: PartOrigins, path: Path) -> None:
    """Every record of the part's file is a document or refused, up to the next part's first."""
    file, first = origins.start
    if len(other := np.flatnonzero(found.file != file)):
        _fail(other[0], found, f"is not in the part's file, {file}", path)
    record = np.sort(np.concatenate([found.record, origins.refused.record]))
    expected = first + np.arange(len(record))
    if not np.array_equal(record, expected):
        missing = int(expected[int(np.argmin(record == expected))])
        raise VerifyError(
            f"record {missing} of file {file} is neither a document nor in rejects.parquet",
            path=path,
        )
    stop = first + len(record)
    if origins.stop[0] == file and origins.stop[1] != stop:
        raise VerifyError(
            f"its records of file {file} end before {stop}, the next part begins with "
            f"{origins.stop[1]}",
            path=path,
        )


def _are_among(places: Places, others: Places) -> np.ndarray:
    """Whether each place is also one of the others, (records,)."""
    file = np.concatenate([others.file, places.file])
    record = np.concatenate([others.record, places.record])
    order = np.lexsort((record, file))  # stable: of one place, the others' come first
    file, record = file[order], record[order]
    is_new = (np.diff(file, prepend=-1) != 0) | (np.diff(record, prepend=-1) != 0)
    first = order[np.flatnonzero(is_new)][np.cumsum(is_new) - 1]
    among = np.empty(len(order), np.bool_)
    among[order] = first < len(others.file)
    return among[len(others.file) :]


def _fail(row: int, found: Places, message: str, path: Path) -> NoReturn:
    raise VerifyError(
        f"row {row}: record {found.record[row]} of file {found.file[row]} {message}", path=path
    )


def _is_whole(name: str, file_format: str | None) -> bool:
    """Whether a file is of a format whose records are all accepted or refused."""
    if file_format == "auto":
        return name.endswith(_WHOLE_ENDINGS)
    return file_format in _WHOLE_FORMATS


def formats_of(manifest: Manifest) -> dict[str, str]:
    """The setting `format` of each source whose configuration the manifest has."""
    found: dict[str, str] = {}
    for config in (manifest.config, *(segment.config or {} for segment in manifest.segments)):
        sources: Any = config.get("sources")
        for entry in sources if isinstance(sources, list) else ():
            if isinstance(entry, dict) and isinstance(entry.get("name"), str):
                found[entry["name"]] = str(entry.get("format"))
    return found
