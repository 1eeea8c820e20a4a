from __future__ import annotations

import os
import pickle
import shutil
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.files.storage import digest_file
from pipeline.reading.formats import resolve_formats
from pipeline.reading.listing import SourceError, list_inputs
from pipeline.reading.splits import plan_splits
from pipeline.settings.documents import SourceConfig
from pipeline.stores.key import store_key
from tests.corpora import (
    source_of,
    tiny_identity,
    write_bytes,
    write_jsonl,
    write_parquet,
    write_tree,
)


def names_of(source: SourceConfig) -> list[str]:
    return [file.name for file in list_inputs(source)]


def spans(source: SourceConfig, split_bytes: int) -> list[tuple[tuple[int, ...], int, int]]:
    splits = plan_splits(source, list_inputs(source), split_bytes=split_bytes)
    assert [split.number for split in splits] == list(range(len(splits)))
    return [(split.files, split.start, split.stop) for split in splits]


class TestInputs:
    def test_a_directory_is_listed_in_byte_order_of_relative_path_without_hidden_files(
        self, tmp_path: Path
    ) -> None:
        files = ("b.txt", "a/z.txt", "a.txt", "B.txt", "\u00e9.txt", ".hidden", ".git/x.txt")
        write_tree(tmp_path, dict.fromkeys(files, "x"))
        # "." is byte 0x2e and "/" 0x2f, upper case is before lower, and two-byte letters are last
        expected = ["B.txt", "a.txt", "a/z.txt", "b.txt", "\u00e9.txt"]
        assert names_of(source_of(tmp_path)) == expected

    def test_configured_paths_keep_their_order(self, tmp_path: Path) -> None:
        write_tree(tmp_path, {"z/1.txt": "x", "a/2.txt": "x"})
        assert names_of(source_of(tmp_path / "z", tmp_path / "a")) == ["1.txt", "2.txt"]

    def test_a_pattern_selects_files_of_directories_by_name(self, tmp_path: Path) -> None:
        write_tree(tmp_path, {"a/x.py": "x", "x.md": "x", "y.py": "x"})
        assert names_of(source_of(tmp_path, pattern="*.py")) == ["a/x.py", "y.py"]

    def test_a_glob_gives_names_relative_to_what_is_before_the_first_wildcard(
        self, tmp_path: Path
    ) -> None:
        write_tree(tmp_path, {"in/a/1.txt": "x", "in/b/c/2.txt": "x", "in/b/3.md": "x"})
        assert names_of(source_of(tmp_path / "in/**/*.txt")) == ["a/1.txt", "b/c/2.txt"]

    def test_a_file_whose_name_holds_wildcards_is_that_file(self, tmp_path: Path) -> None:
        write_tree(tmp_path, {"a[1].txt": "x", "a1.txt": "y"})
        assert names_of(source_of(tmp_path / "a[1].txt")) == ["a[1].txt"]

    def test_equal_names_under_two_paths_are_told_apart_by_the_paths_number(
        self, tmp_path: Path
    ) -> None:
        write_tree(tmp_path, {"en/t.txt": "x", "de/t.txt": "x", "de/u.txt": "x"})
        source = source_of(tmp_path / "en/t.txt", tmp_path / "de")
        assert names_of(source) == ["0/t.txt", "1/t.txt", "1/u.txt"]

    def test_linked_directories_are_entered_and_a_circle_is_refused(self, tmp_path: Path) -> None:
        write_tree(tmp_path, {"far/1.txt": "x", "near/0.txt": "x"})
        (tmp_path / "near/link").symlink_to(tmp_path / "far")
        assert names_of(source_of(tmp_path / "near")) == ["0.txt", "link/1.txt"]
        (tmp_path / "far/back").symlink_to(tmp_path / "near")
        with pytest.raises(SourceError, match="links to a directory above it"):
            list_inputs(source_of(tmp_path / "near"))

    def test_sizes_and_digests_are_those_of_the_content(self, tmp_path: Path) -> None:
        write_tree(tmp_path, {"a.txt": "steelyard", "b.txt": "", "c.txt": "steelyard"})
        files = list_inputs(source_of(tmp_path))
        assert [file.bytes for file in files] == [9, 0, 9]
        first, empty, third = (digest_file(file.path) for file in files)
        assert first == third != empty == "99aa06d3014798d86001c324468d497f"

    @pytest.mark.parametrize(
        ("paths", "message"),
        [
            (("missing.jsonl",), "does not exist"),
            (("*.nothing",), "matches no file"),
            (("empty",), r"with pattern '\*' matches no file"),
            (("a.txt", "*.txt"), "is listed twice, by .*a.txt' and by .*txt'; remove one"),
        ],
    )
    def test_what_cannot_be_listed_says_what_to_do(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, paths: tuple[str], message: str
    ) -> None:
        write_tree(tmp_path, {"a.txt": "x"})
        (tmp_path / "empty").mkdir()
        monkeypatch.chdir(tmp_path)
        with pytest.raises(SourceError, match=message):
            list_inputs(SourceConfig(name="corpus", paths=paths))

    def test_a_name_that_is_not_utf8_is_refused_here_and_not_at_the_end(
        self, tmp_path: Path
    ) -> None:
        with open(os.fsencode(tmp_path) + b"/\xff.txt", "wb") as file:
            file.write(b"x")
        with pytest.raises(SourceError, match="not UTF-8; rename"):
            list_inputs(source_of(tmp_path))


class TestFormat:
    @pytest.mark.parametrize(
        ("name", "kind"),
        [
            ("a.jsonl", "jsonl"),
            ("a.json", "jsonl"),
            ("a.ndjson.zst", "jsonl"),
            ("a.parquet", "parquet"),
            ("a.arrow", "arrow"),
            ("a.feather", "arrow"),
            ("a.py", "text"),
            ("a.txt.gz", "text"),
        ],
    )
    def test_names_decide(self, tmp_path: Path, name: str, kind: str) -> None:
        source = source_of(write_bytes(tmp_path / name, b"x"))
        assert resolve_formats(source, list_inputs(source)) == (kind,)

    def test_any_other_file_is_text_in_a_directory_and_undecidable_alone(
        self, tmp_path: Path
    ) -> None:
        write_tree(tmp_path, {"tree/Makefile": "x", "tree/a.weird": "x"})
        tree, alone = source_of(tmp_path / "tree"), source_of(tmp_path / "tree/a.weird")
        assert resolve_formats(tree, list_inputs(tree)) == ("text", "text")
        with pytest.raises(SourceError, match=r"a\.weird does not say what it holds; set format"):
            resolve_formats(alone, list_inputs(alone))

    def test_a_readme_beside_records_is_not_silently_a_document(self, tmp_path: Path) -> None:
        write_tree(tmp_path, {"README.md": "x", "a.jsonl": "{}"})
        source = source_of(tmp_path)
        with pytest.raises(SourceError, match=r"README.md \(text\), a.jsonl \(jsonl\); set patt"):
            resolve_formats(source, list_inputs(source))
        source = source_of(tmp_path, format="text")
        assert resolve_formats(source, list_inputs(source)) == ("text", "text")

    def test_paths_of_one_source_may_hold_different_formats(self, tmp_path: Path) -> None:
        write_tree(tmp_path, {"tree/a.md": "x", "tree/b.md": "y", "z.jsonl": '{"text": "z"}\n'})
        source = source_of(tmp_path / "z.jsonl", tmp_path / "tree")
        inputs = list_inputs(source)
        assert resolve_formats(source, inputs) == ("jsonl", "text", "text")
        splits = plan_splits(source, inputs, split_bytes=1024)
        assert [(split.format, split.files) for split in splits] == [
            ("jsonl", (0,)),
            ("text", (1, 2)),
        ]


class TestParquetColumns:
    def test_a_column_that_is_there_twice_is_refused(self, tmp_path: Path) -> None:
        column = pa.array(["x"])
        pq.write_table(
            pa.Table.from_arrays([column, column], ["text", "text"]), tmp_path / "a.parquet"
        )
        source = source_of(tmp_path / "a.parquet")
        with pytest.raises(SourceError, match="2 columns are called 'text'"):
            plan_splits(source, list_inputs(source), split_bytes=1024)


class TestSplits:
    def test_plain_jsonl_is_cut_at_bytes_and_compressed_is_whole(self, tmp_path: Path) -> None:
        write_bytes(tmp_path / "a.jsonl", b"x" * 25)
        write_bytes(tmp_path / "b.jsonl", b"")
        write_bytes(tmp_path / "c.jsonl.gz", b"x" * 100)
        write_bytes(tmp_path / "d.jsonl", b"x" * 10)
        assert spans(source_of(tmp_path), 10) == [
            ((0,), 0, 10),
            ((0,), 10, 20),
            ((0,), 20, 25),
            ((2,), 0, 1),
            ((3,), 0, 10),
        ]

    def test_text_files_are_grouped_whole(self, tmp_path: Path) -> None:
        sizes = [4, 6, 1, 30, 0, 5]
        write_tree(tmp_path, {f"{i}.txt": "x" * size for i, size in enumerate(sizes)})
        assert spans(source_of(tmp_path), 10) == [
            ((0, 1), 0, 2),
            ((2,), 0, 1),
            ((3,), 0, 1),
            ((4, 5), 0, 2),
        ]

    def test_parquet_is_cut_between_row_groups_of_one_file(self, tmp_path: Path) -> None:
        write_parquet(tmp_path / "a.parquet", ["x" * 100] * 50, rows_per_group=10)
        write_parquet(tmp_path / "b.parquet", ["x" * 100] * 5)
        (tmp_path / "c.parquet").touch()
        source = source_of(tmp_path)
        one_group, whole = spans(source, 1), spans(source, 1 << 20)
        assert one_group == [((0,), i, i + 1) for i in range(5)] + [((1,), 0, 1)]
        assert whole == [((0,), 0, 5), ((1,), 0, 1)]

    @pytest.mark.parametrize("split_bytes", [10, 64, 1 << 20])
    def test_the_bytes_of_all_splits_are_those_of_the_files(
        self, tmp_path: Path, split_bytes: int
    ) -> None:
        for name in ("a.jsonl", "b.jsonl.gz", "tree/a.txt", "tree/b.txt"):
            write_bytes(tmp_path / name, b"x" * 77)
        for source in (source_of(tmp_path / "*.jsonl*"), source_of(tmp_path / "tree")):
            inputs = list_inputs(source)
            splits = plan_splits(source, inputs, split_bytes=split_bytes)
            assert sum(s.num_bytes for s in splits) == sum(file.bytes for file in inputs)

    def test_a_split_travels_to_a_worker(self, tmp_path: Path) -> None:
        source = source_of(write_jsonl(tmp_path / "a.jsonl", ["x"]))
        (split,) = plan_splits(source, list_inputs(source), split_bytes=1024)
        assert pickle.loads(pickle.dumps(split)) == split
        assert split.paths == (str(tmp_path / "a.jsonl"),)

    def test_parquet_without_the_text_column_names_those_it_has(self, tmp_path: Path) -> None:
        path = write_parquet(tmp_path / "a.parquet", ["x"], text_column="content")
        with pytest.raises(SourceError, match="set text_column to one of: id, content"):
            spans(source_of(path), 10)
        with pytest.raises(SourceError, match="holds int64 there, not strings"):
            spans(source_of(path, text_column="id"), 10)
        with pytest.raises(SourceError, match="cannot be read as Parquet"):
            spans(source_of(write_bytes(tmp_path / "b.parquet", b"no parquet")), 10)

    @pytest.mark.parametrize(
        "type_", [pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string())]
    )
    def test_every_arrow_string_type_is_text(self, tmp_path: Path, type_: pa.DataType) -> None:
        path = write_parquet(tmp_path / "a.parquet", ["x", "y"], type_=type_)
        assert spans(source_of(path), 10_000) == [((0,), 0, 1)]


class TestKey:
    @pytest.fixture
    def source(self, tmp_path: Path) -> SourceConfig:
        write_jsonl(tmp_path / "in/a.jsonl", ["x"])
        write_jsonl(tmp_path / "in/b.jsonl", ["y"])
        return source_of(tmp_path / "in")

    @staticmethod
    def key(source: SourceConfig, split_bytes: int = 1024, **tokenizer: object) -> str:
        inputs = list_inputs(source)
        digests = [digest_file(file.path) for file in inputs]
        identity = replace(tiny_identity(), **tokenizer)  # type: ignore[arg-type]
        return store_key(source, inputs, digests, identity, split_bytes)

    def test_what_tokens_do_not_depend_on_is_no_part_of_it(
        self, source: SourceConfig, tmp_path: Path
    ) -> None:
        key = self.key(source)
        assert len(key) == 64
        moved = shutil.move(tmp_path / "in", tmp_path / "elsewhere")
        for change in ({"weight": 2.0}, {"max_epochs": 3}, {"format": "jsonl"}, {"name": "other"}):
            changed = source.model_copy(update={"paths": (str(moved),), **change})
            assert self.key(changed) == key
        assert self.key(source_of(Path(moved)), path="/x/tokenizer.json", name="x") == key

    def test_all_that_tokens_depend_on_is(self, source: SourceConfig, tmp_path: Path) -> None:
        keys = {
            self.key(source),
            self.key(source, split_bytes=2048),
            self.key(source, sha256="0" * 64),
            self.key(source, eos_id=None),
            self.key(source, bos_id=0),
            self.key(source, special_tokens_in_text="tokens"),
            self.key(source.model_copy(update={"text_column": "content"})),
            self.key(source.model_copy(update={"format": "text"})),
            self.key(source.model_copy(update={"pattern": "a*"})),
        }
        content = (tmp_path / "in/a.jsonl").read_bytes()
        write_bytes(tmp_path / "in/a.jsonl", content.replace(b"x", b"z"))
        keys.add(self.key(source))
        assert len(keys) == 10

    def test_the_text_column_is_no_part_of_it_where_none_is_read(self, tmp_path: Path) -> None:
        write_tree(tmp_path, {"a.txt": "x"})
        source = source_of(tmp_path)
        assert self.key(source) == self.key(source.model_copy(update={"text_column": "content"}))
