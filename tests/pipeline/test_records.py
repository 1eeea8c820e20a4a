"""Files of a tree as records, and the batches that records come in."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from pipeline.reading.listing import list_inputs
from pipeline.reading.records import read as read_module
from pipeline.reading.records.read import RecordBatch, read_records
from pipeline.reading.splits import plan_splits
from tests.corpora import source_of, write_bytes, write_jsonl, write_tree
from tests.pipeline.found_records import read


class TestTrees:
    def test_a_file_is_a_document(self, tmp_path: Path) -> None:
        write_tree(tmp_path, {"a.py": "x = 1\n", "b/c.py": "\ufeffy = 2\r\n", "d.py": "", "e": " "})
        write_bytes(tmp_path / "b/a.png", b"\x89PNG")
        accepted, refused = read(source_of(tmp_path))
        assert accepted == [(0, 0, "x = 1\n"), (2, 0, "y = 2\r\n")]
        assert refused == [(1, 0, "bad_utf8"), (3, 0, "empty_text"), (4, 0, "empty_text")]
        assert read(source_of(tmp_path), split_bytes=1) == (accepted, refused)


class TestBatches:
    def batches(self, tmp_path: Path, texts: list[str]) -> list[RecordBatch]:
        source = source_of(write_jsonl(tmp_path / "a.jsonl", texts))
        (split,) = plan_splits(source, list_inputs(source), split_bytes=1 << 30)
        return list(read_records(split, source))

    def test_a_batch_is_bounded_in_bytes_and_in_records(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(read_module, "BATCH_BYTES", 100)
        monkeypatch.setattr(read_module, "BATCH_RECORDS", 4)
        texts = ["x" * 60, "x" * 60, "y" * 500, *"abcdefg", "", " ", "", "", ""]
        batches = self.batches(tmp_path, texts)
        assert [(len(b.texts), len(b.rejects)) for b in batches] == [
            (2, 0),
            (1, 0),
            (4, 0),
            (3, 1),
            (0, 4),
            (0, 0),
        ]

    def test_records_counts_all_that_was_read_so_far(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(read_module, "BATCH_RECORDS", 3)
        batches = self.batches(tmp_path, ["a", "", "b", "c", "", "", "d"])
        counts = [batch.records for batch in batches]
        assert counts == [3, 6, 7]
        assert all(before < after for before, after in pairwise(counts))
