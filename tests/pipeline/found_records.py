"""What is read of a source: records accepted and refused."""

from __future__ import annotations

from pathlib import Path

from pipeline.reading.listing import list_inputs
from pipeline.reading.records.read import read_records
from pipeline.reading.splits import plan_splits
from pipeline.settings.documents import SourceConfig
from tests.corpora import source_of, write_bytes

COMPRESSED = ["a.jsonl.gz", "a.jsonl.zst", "a.jsonl.bz2", "a.jsonl.xz"]
Found = tuple[list[tuple[int, int, str]], list[tuple[int, int, str]]]


def read(source: SourceConfig, *, split_bytes: int = 1 << 20) -> Found:
    """Accepted (file, record, text) and refused (file, record, reason), numbers of whole files."""
    accepted, refused = [], []
    before: dict[int, int] = {}
    for split in plan_splits(source, list_inputs(source), split_bytes=split_bytes):
        batches = list(read_records(split, source))
        for batch in batches:
            shift = before.get(split.files[0], 0)
            numbers = zip(batch.file, batch.record, batch.texts, strict=True)
            accepted += [(file, record + shift, text) for file, record, text in numbers]
            refused += [(r.file, r.record + shift, r.reason) for r in batch.rejects]
            sizes = [len(text.encode()) for text in batch.texts]
            assert batch.text_bytes == sizes
        before[split.files[0]] = before.get(split.files[0], 0) + batches[-1].records
    return accepted, refused


def read_lines(path: Path, content: bytes) -> Found:
    return read(source_of(write_bytes(path, content), format="jsonl"))


def details(source: SourceConfig) -> list[str]:
    (split,) = plan_splits(source, list_inputs(source), split_bytes=1 << 30)
    batches = read_records(split, source)
    return [reject.detail for batch in batches for reject in batch.rejects]
