"""A split's records in bounded batches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from pipeline.reading.records.columnar import arrow_records, parquet_records
from pipeline.reading.records.fields import MAX_METADATA_BYTES
from pipeline.reading.records.json_lines import json_records
from pipeline.reading.records.outcome import BLANK, Outcome, Problem, Record, text_size
from pipeline.reading.records.text import text_record
from pipeline.reading.splits import Split
from pipeline.settings.documents import SourceConfig
from pipeline.stores.rejects import Reject

BATCH_BYTES = 1 << 20
BATCH_RECORDS = 1024
_DETAIL_CHARACTERS = 200


_READERS = {"arrow": arrow_records, "jsonl": json_records, "parquet": parquet_records}


@dataclass(slots=True, kw_only=True)
class RecordBatch:
    """Consecutive records of a split, at most about `BATCH_BYTES` or `BATCH_RECORDS` of them.

    The first six lists are parallel, one entry an accepted record. `notes` are of accepted records
    too. `records` counts the records
    (lines, rows, files) read of the split so far, this batch included.
    """

    texts: list[str] = field(default_factory=list)
    text_bytes: list[int] = field(default_factory=list)
    file: list[int] = field(default_factory=list)
    record: list[int] = field(default_factory=list)
    metadata: list[str | None] = field(default_factory=list)
    ids: list[str | None] = field(default_factory=list)
    rejects: list[Reject] = field(default_factory=list)
    notes: list[Reject] = field(default_factory=list)
    records: int = 0

    def accept(self, file: int, record: int, found: Record, text_bytes: int) -> int:
        """Add a document; the bytes that it adds to the batch."""
        metadata = found.metadata
        if metadata is not None and len(metadata) > MAX_METADATA_BYTES:
            detail = f"{len(metadata)} bytes, at most {MAX_METADATA_BYTES} are kept"
            self.note(file, record, "metadata_too_long", detail)
            metadata = None
        self.texts.append(found.text)
        self.text_bytes.append(text_bytes)
        self.file.append(file)
        self.record.append(record)
        self.metadata.append(metadata)
        self.ids.append(found.id)
        return text_bytes + len(metadata or "")

    def refuse(self, file: int, record: int, problem: Problem) -> None:
        """Add a record that is not accepted."""
        detail = problem.detail[:_DETAIL_CHARACTERS]
        self.rejects.append(Reject(file=file, record=record, reason=problem.reason, detail=detail))

    def note(self, file: int, record: int, reason: str, detail: str) -> None:
        """Add a note about an accepted record."""
        detail = detail[:_DETAIL_CHARACTERS]
        self.notes.append(Reject(file=file, record=record, reason=reason, detail=detail))


def read_records(
    split: Split, source: SourceConfig, duplicates: Iterable[int] = ()
) -> Iterator[RecordBatch]:
    """Read a split in bounded batches, in order.

    Memory is bounded by a batch and one record (for Parquet by a row group of the columns that are
    read, for Arrow by a record batch).

    Args:
        split: what to read.
        source: where the text is in a record, and what else is kept.
        duplicates: numbers of records, ascending, whose id an earlier record has; refused where
            `duplicate_ids` is "reject", else noted.

    Raises:
        SourceError: a Parquet or Arrow file that cannot be read.
    """
    batch, size = RecordBatch(), 0
    repeats = iter(duplicates)
    repeat = next(repeats, -1)
    for file, record, found in _outcomes(split, source):
        batch.records += 1
        is_repeat = record == repeat
        if is_repeat:
            repeat = next(repeats, -1)
        if is_repeat and isinstance(found, Record):
            detail = f"{source.id_column} {found.id}"
            if source.duplicate_ids == "reject":
                found = Problem("duplicate_id", detail)
            else:
                batch.note(file, record, "duplicate_id", detail)
        if isinstance(found, Record):
            checked = text_size(found.text)
            if isinstance(checked, Problem):
                batch.refuse(file, record, checked)
            else:
                size += batch.accept(file, record, found, checked)
        elif found is not BLANK:
            batch.refuse(file, record, found)
        if size >= BATCH_BYTES or len(batch.texts) + len(batch.rejects) >= BATCH_RECORDS:
            yield batch
            batch, size = RecordBatch(records=batch.records), 0
    yield batch


def _outcomes(split: Split, source: SourceConfig) -> Iterator[tuple[int, int, Outcome]]:
    """File, number and fields of every record, or what is wrong with it."""
    if split.format == "text":
        for file, path, name in zip(split.files, split.paths, split.names, strict=True):
            yield file, 0, text_record(path, name)
        return
    for record, found in enumerate(_READERS[split.format](split, source)):
        yield split.files[0], record, found
