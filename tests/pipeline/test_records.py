from __future__ import annotations

import bz2
import gzip
import json
import lzma
import random
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.reading.listing import SourceError, list_inputs
from pipeline.reading.records import lines, outcome
from pipeline.reading.records import read as read_module
from pipeline.reading.records.read import RecordBatch, read_records
from pipeline.reading.sources import plan_splits
from pipeline.settings.documents import SourceConfig
from tests.corpora import source_of, write_bytes, write_jsonl, write_parquet, write_tree
from tests.reference_records import read_jsonl

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


class TestLines:
    @pytest.mark.parametrize(
        ("line", "reason"),
        [
            (b'{"text": "open', "broken_json"),
            (b"not json", "broken_json"),
            (b'{"text": "x"} {"text": "y"}', "broken_json"),
            (b"[" * 100_000, "broken_json"),
            (b"[" + b"9" * 5000 + b"]", "broken_json"),
            (b'["text"]', "not_an_object"),
            (b'"text"', "not_an_object"),
            (b"null", "not_an_object"),
            (b"{}", "missing_text"),
            (b'{"text": null}', "missing_text"),
            (b'{"text": 3}', "text_not_string"),
            (b'{"text": ["x"]}', "text_not_string"),
            (b'{"text": ""}', "empty_text"),
            (b'{"text": " \\n\\t\\u00a0"}', "empty_text"),
            (b'{"text": "\xff"}', "bad_utf8"),
            (b'{"text": "\xed\xa0\x80"}', "bad_utf8"),
            (b'{"text": "a\\ud800b"}', "bad_utf8"),
        ],
    )
    def test_a_bad_record_is_refused_alone(self, tmp_path: Path, line: bytes, reason: str) -> None:
        content = b'{"text": "before"}\n' + line + b'\n{"text": "after"}\n'
        accepted, refused = read_lines(tmp_path / "a.jsonl", content)
        assert accepted == [(0, 0, "before"), (0, 2, "after")]
        assert refused == [(0, 1, reason)]

    def test_a_reject_says_what_was_found_and_where_in_the_line(self, tmp_path: Path) -> None:
        lines = [b'{"text": 1, "x": }', b'{"text": "\xff"}', b"[]", b'{"text": null}', b"x" * 9000]
        source = source_of(write_bytes(tmp_path / "a.jsonl", b"\n".join(lines)))
        assert details(source) == [
            "Expecting value at character 17",
            "invalid start byte at byte 10",
            "a JSON list",
            "'text' is null",
            "Expecting value at character 0",
        ]

    @pytest.mark.parametrize(
        "line",
        [
            b'{"text": "a", "n": NaN, "m": -Infinity}',
            b'{"text": "a", "n": 123456789012345678901234567890}',
            b'{"text": "a", "n": 1e999, "m": ' + b"8" * 4000 + b"}",
            b'{"text": "a", "other": "\\ud800"}',
            b'{"text": 1, "text": "a"}',
            b'{"text": "\\u0061", "deep": ' + b"[" * 199 + b"]" * 199 + b"}",
        ],
    )
    def test_what_only_one_of_the_two_parsers_takes_is_taken(
        self, tmp_path: Path, line: bytes
    ) -> None:
        assert read_lines(tmp_path / "a.jsonl", line) == ([(0, 0, "a")], [])

    def test_what_is_too_deep_does_not_depend_on_the_stack(self, tmp_path: Path) -> None:
        def below(frames: int, depth: int, rest: bytes) -> Found:
            if frames:
                return below(frames - 1, depth, rest)
            deep = b"[" * (depth - 1) + rest + b"]" * (depth - 1)
            line = b'{"text": "a", "brackets": "[[\\"", "deep": ' + deep + b"}"
            return read_lines(tmp_path / "a.jsonl", line)

        for frames in (0, 500):
            for rest in (b"", b"NaN"):  # the second is for the standard library
                assert below(frames, 200, rest) == ([(0, 0, "a")], [])
                assert below(frames, 201, rest) == ([], [(0, 0, "broken_json")])

    def test_brackets_in_strings_are_not_depth(self, tmp_path: Path) -> None:
        line = json.dumps({"text": "[{" * 500 + '\\"', "other": [["]" * 300]], "n": float("nan")})
        found, rejects = read_lines(tmp_path / "a.jsonl", line.encode())
        assert (len(found), rejects) == (1, [])

    def test_blank_lines_are_no_records_but_count_as_lines(self, tmp_path: Path) -> None:
        content = b'\n{"text": "a"}\n  \r\n\n{"text": "b"}\n\n'
        found = read_lines(tmp_path / "a.jsonl", content)
        assert found == ([(0, 1, "a"), (0, 4, "b")], [])

    @pytest.mark.parametrize(
        "content",
        [
            b'{"text": "a"}\n{"text": "b"}',
            b'{"text": "a"}\r\n{"text": "b"}\r\n',
            b'\xef\xbb\xbf{"text": "a"}\n{"text": "b"}\n',
        ],
        ids=["no newline at the end", "CRLF", "BOM"],
    )
    @pytest.mark.parametrize("name", ["a.jsonl", *COMPRESSED])
    def test_line_endings_and_a_byte_order_mark_are_no_content(
        self, tmp_path: Path, content: bytes, name: str
    ) -> None:
        assert read_lines(tmp_path / name, content) == ([(0, 0, "a"), (0, 1, "b")], [])

    def test_a_byte_order_mark_inside_a_file_is_not_skipped(self, tmp_path: Path) -> None:
        content = b'{"text": "a"}\n\xef\xbb\xbf{"text": "b"}\n'
        assert read_lines(tmp_path / "a.jsonl", content)[1] == [(0, 1, "broken_json")]

    @pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be", "utf-32-le"])
    @pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz"])
    def test_a_file_in_utf16_is_one_reject_whatever_the_splits(
        self, tmp_path: Path, encoding: str, name: str
    ) -> None:
        content = ("\ufeff" + '{"text": "a"}\n' * 30).encode(encoding)
        source = source_of(write_bytes(tmp_path / name, content))
        for split_bytes in (50, 1 << 20):
            assert read(source, split_bytes=split_bytes) == ([], [(0, 0, "utf16")])
        write_bytes(tmp_path / "tree/a.txt", content)
        assert read(source_of(tmp_path / "tree")) == ([], [(0, 0, "utf16")])

    def test_a_stray_mark_on_the_first_line_costs_that_line_alone(self, tmp_path: Path) -> None:
        found = read_lines(tmp_path / "a.jsonl", b'\xff\xfe{"text": "a"}\n{"text": "b"}\n')
        assert found == ([(0, 1, "b")], [(0, 0, "bad_utf8")])

    def test_another_column_can_hold_the_text(self, tmp_path: Path) -> None:
        path = write_jsonl(tmp_path / "a.jsonl", ["x"], text_column="content")
        assert read(source_of(path, text_column="content")) == ([(0, 0, "x")], [])

    def test_a_giant_line_is_passed_over_without_being_held(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(lines, "MAX_LINE_BYTES", 64)
        monkeypatch.setattr(lines, "READ_BYTES", 16)
        giant = json.dumps({"text": "x" * 500}).encode()
        content = b'{"text": "a"}\n' + giant + b'\n{"text": "b"}\n' + giant
        accepted, refused = read_lines(tmp_path / "a.jsonl", content)
        assert accepted == [(0, 0, "a"), (0, 2, "b")]
        assert refused == [(0, 1, "too_long"), (0, 3, "too_long")]

    def test_a_text_over_the_limit_is_refused(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(outcome, "MAX_TEXT_BYTES", 10)
        texts = ["x" * 10, "x" * 11, "\u6f22" * 4]
        found = read(source_of(write_jsonl(tmp_path / "a.jsonl", texts)))
        assert found == ([(0, 0, "x" * 10)], [(0, 1, "too_long"), (0, 2, "too_long")])
        write_tree(tmp_path / "tree", {"a": "x" * 10, "b": "x" * 11})
        assert read(source_of(tmp_path / "tree"))[1] == [(1, 0, "too_long")]


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


class TestCompressed:
    TEXTS = tuple(f"text {i} {random.Random(i).getrandbits(512):x}" for i in range(2500))

    @pytest.mark.parametrize("name", COMPRESSED)
    def test_what_was_read_before_a_file_breaks_off_is_kept(
        self, tmp_path: Path, name: str
    ) -> None:
        path = write_jsonl(tmp_path / name, self.TEXTS)
        whole = path.read_bytes()
        for kept in (len(whole) - 1, len(whole) // 2, 5):
            path.write_bytes(whole[:kept])
            accepted, refused = read(source_of(path))
            texts = [text for *_, text in accepted]
            assert texts == list(self.TEXTS[: len(texts)])
            assert refused == [(0, len(texts), "truncated")]
            if kept > 5:
                assert texts

    @pytest.mark.parametrize("name", COMPRESSED)
    def test_damage_in_the_middle_is_the_end_and_told(self, tmp_path: Path, name: str) -> None:
        path = write_jsonl(tmp_path / name, self.TEXTS)
        content = bytearray(path.read_bytes())
        content[-200:] = bytes(200)
        path.write_bytes(content)
        _, refused = read(source_of(path))
        assert refused[-1][2] == "truncated"

    def test_members_and_frames_one_after_the_other_are_one_file(self, tmp_path: Path) -> None:
        lines = [json.dumps({"text": text}).encode() + b"\n" for text in ("a", "b", "c")]
        skippable = b"\x50\x2a\x4d\x18\x03\x00\x00\x00abc"
        members = {
            "a.jsonl.gz": b"".join(gzip.compress(line) for line in lines),
            "a.jsonl.zst": skippable.join(zstandard.compress(line) for line in lines),
            "a.jsonl.bz2": b"".join(bz2.compress(line) for line in lines),
            "a.jsonl.xz": bytes(8).join(lzma.compress(line) for line in lines) + bytes(4),
        }
        for name, content in members.items():
            (tmp_path / name).write_bytes(content)
            accepted, refused = read(source_of(tmp_path / name))
            assert ([text for *_, text in accepted], refused) == (["a", "b", "c"], [])

    def test_a_zstd_file_with_a_wide_window_is_read(self, tmp_path: Path) -> None:
        wide = zstandard.ZstdCompressionParameters(window_log=30, enable_ldm=True)
        compressor = zstandard.ZstdCompressor(compression_params=wide).compressobj()
        content = compressor.compress(b'{"text": "a"}\n') + compressor.flush()
        (tmp_path / "a.jsonl.zst").write_bytes(content)
        assert zstandard.get_frame_parameters(content).window_size == 1 << 30
        assert read(source_of(tmp_path / "a.jsonl.zst")) == ([(0, 0, "a")], [])

    @pytest.mark.parametrize("name", ["a.txt.gz", "a.txt.zst", "a.txt.bz2", "a.txt.xz"])
    def test_a_compressed_text_file_is_one_document(self, tmp_path: Path, name: str) -> None:
        path = write_bytes(tmp_path / name, b"\xef\xbb\xbfone\ntwo\n")
        assert read(source_of(path)) == ([(0, 0, "one\ntwo\n")], [])
        path.write_bytes(path.read_bytes()[:-4])
        assert read(source_of(path)) == ([], [(0, 0, "truncated")])


class TestParquet:
    TEXTS = ("a", None, "", "b" * 5000, "c", "\u6f22", "d")

    @pytest.mark.parametrize(
        "type_",
        [
            pa.string(),
            pa.large_string(),
            pa.string_view(),
            pa.dictionary(pa.int32(), pa.string()),
        ],
    )
    @pytest.mark.parametrize("split_bytes", [1, 200, 1 << 20])
    def test_rows_are_records_whatever_the_groups_and_splits(
        self, tmp_path: Path, type_: pa.DataType, split_bytes: int
    ) -> None:
        path = write_parquet(tmp_path / "a.parquet", self.TEXTS, rows_per_group=2, type_=type_)
        accepted, refused = read(source_of(path), split_bytes=split_bytes)
        assert accepted == [(0, i, self.TEXTS[i]) for i in (0, 3, 4, 5, 6)]
        assert refused == [(0, 1, "missing_text"), (0, 2, "empty_text")]

    def test_a_string_that_is_not_utf8_is_refused_alone(self, tmp_path: Path) -> None:
        column = pa.array([b"a", b"\xff", None, b"b"]).view(pa.string())
        pq.write_table(pa.table({"text": column}), tmp_path / "a.parquet")
        accepted, refused = read(source_of(tmp_path / "a.parquet"))
        assert accepted == [(0, 0, "a"), (0, 3, "b")]
        assert refused == [(0, 1, "bad_utf8"), (0, 2, "missing_text")]

    def test_a_damaged_file_stops_the_reading_and_is_named(self, tmp_path: Path) -> None:
        path = write_parquet(tmp_path / "a.parquet", [f"{i}" * 50 for i in range(200)])
        content = bytearray(path.read_bytes())
        content[8:2000] = bytes(1992)
        path.write_bytes(content)
        with pytest.raises(SourceError, match=r"a\.parquet: row groups 0 to 12 cannot be read"):
            read(source_of(path))


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
