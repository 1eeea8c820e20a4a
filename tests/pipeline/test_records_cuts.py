"""Where a file of lines is cut changes no record."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.reading.listing import list_inputs
from pipeline.reading.records import lines
from pipeline.reading.records.read import read_records
from pipeline.reading.splits import plan_splits
from tests.corpora import source_of, write_bytes, write_jsonl
from tests.pipeline.found_records import read
from tests.reference_records import read_jsonl


class TestCuts:
    LINES = st.lists(
        st.one_of(
            st.sampled_from([b"", b" ", b"{}", b"[1]", b"oops", b'{"text": "\xff"}', b"\r"]),
            st.text(max_size=12).map(lambda text: json.dumps({"text": text}).encode()),
            st.text(st.characters(exclude_categories=["Cs"]), max_size=40).map(
                lambda text: json.dumps({"text": text}, ensure_ascii=False).encode()
            ),
        ),
        max_size=12,
    )

    @given(lines=LINES, split_bytes=st.integers(1, 60), end=st.sampled_from([b"", b"\n", b"\r\n"]))
    @settings(max_examples=150, deadline=None)
    def test_every_split_size_gives_the_records_of_the_whole_file(
        self,
        tmp_path_factory: pytest.TempPathFactory,
        lines: list[bytes],
        split_bytes: int,
        end: bytes,
    ) -> None:
        content = b"\n".join(lines) + end
        path = tmp_path_factory.getbasetemp() / "cut.jsonl"
        accepted, refused = read(source_of(write_bytes(path, content)), split_bytes=split_bytes)
        expected, others = read_jsonl(content)
        assert [(record, text) for _, record, text in accepted] == expected
        assert [record for _, record, _ in refused] == others

    def test_a_line_longer_than_many_splits_is_read_once_and_whole(self, tmp_path: Path) -> None:
        texts = ["a", "b" * 1000, "c"]
        source = source_of(write_jsonl(tmp_path / "a.jsonl", texts))
        splits = plan_splits(source, list_inputs(source), split_bytes=16)
        read_by = [
            [text for batch in read_records(split, source) for text in batch.texts]
            for split in splits
        ]
        assert [text for found in read_by for text in found] == texts
        assert read_by.count([]) > 50  # splits inside the long line hold no record

    @pytest.mark.parametrize("cut", range(12, 18))
    def test_a_record_belongs_to_the_split_of_its_first_byte(
        self, tmp_path: Path, cut: int
    ) -> None:
        first, second = b'{"text": "a"}\n', b'{"text": "b"}\n'
        source = source_of(write_bytes(tmp_path / "a.jsonl", first + second))
        before, *_ = plan_splits(source, list_inputs(source), split_bytes=cut)
        (batch,) = read_records(before, source)
        assert batch.texts == (["a"] if cut <= len(first) else ["a", "b"])

    def test_blocks_of_reading_may_end_anywhere(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        texts = [f"text {i} " * (i % 7 + 1) for i in range(40)]
        path = write_jsonl(tmp_path / "a.jsonl", texts)
        for read_bytes in (1, 2, 13, 64):
            monkeypatch.setattr(lines, "READ_BYTES", read_bytes)
            accepted, refused = read(source_of(path), split_bytes=100)
            assert ([text for *_, text in accepted], refused) == (texts, [])
