"""Lines as records: what is accepted, and what is refused alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pipeline.reading.records import lines, outcome
from tests.corpora import source_of, write_bytes, write_jsonl, write_tree
from tests.pipeline.found_records import COMPRESSED, Found, details, read, read_lines


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

    @pytest.mark.parametrize("end", [b"", b"\\", b'"'])
    def test_a_string_without_an_end_is_passed_over_once(self, tmp_path: Path, end: bytes) -> None:
        """Tried again from every place in it, such a line would take for ever."""
        line = b'{"text": "a", "b' + b"[ word \\" * 20_000 + b'\\"[' * 20_000 + end
        assert read_lines(tmp_path / "a.jsonl", line) == ([], [(0, 0, "broken_json")])

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
