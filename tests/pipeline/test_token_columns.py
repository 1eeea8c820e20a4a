"""Columns of token ids as sources, and what is done with the ends of given documents."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.files.storage import digest_file
from pipeline.reading.listing import list_inputs
from pipeline.reading.source_error import SourceError
from pipeline.reading.splits import plan_splits
from pipeline.reading.token_columns import column_ids, list_lengths
from pipeline.reading.token_records import ends_text, read_tokens
from pipeline.settings.documents import SourceConfig
from pipeline.shard.token_store import TokenStore
from pipeline.stores import tokenize
from pipeline.stores.key import store_key
from pipeline.tokenizer.engine import load_engine
from pipeline.tokenizer.identity import TokenizerError, policy_text, without_vocabulary
from tests.corpora import BOS_ID, EOS_ID, build_store, source_of, tiny_identity, write_jsonl
from tests.pipeline.id_stores import rejects_of, store_of
from tests.pipeline.tokenized import documents_of

Rows = Sequence[Sequence[int | None] | None]
ROWS: Rows = ([5, 6], None, [], [7] * 500, [8, None], [9, 70_000], [10])
GOOD = [[5, 6], [7] * 500, [10]]


def write_ids(
    path: Path, rows: Rows, type_: pa.DataType | None = None, *, rows_per_group: int = 2
) -> Path:
    columns = {
        "input_ids": pa.array(rows, type_ or pa.list_(pa.int32())),
        "text": pa.array([str(row) for row in rows]),
        "scores": pa.array([[0.5]] * len(rows)),
        "labels": pa.array([[1]] * len(rows)),
    }
    pq.write_table(pa.table(columns), path, row_group_size=rows_per_group)
    return path


def ids_of(*paths: Path, **settings: object) -> SourceConfig:
    return source_of(*paths, **{"token_column": "input_ids", **settings})


class TestColumns:
    @pytest.mark.parametrize(
        "type_",
        [pa.list_(pa.int32()), pa.large_list(pa.int64()), pa.list_(pa.uint32()),
         pa.list_(pa.uint64())],
        ids=str,
    )  # fmt: skip
    @pytest.mark.parametrize("split_bytes", [1, 1 << 20])
    def test_rows_are_documents_and_bad_rows_are_refused_alone(
        self, tmp_path: Path, type_: pa.DataType, split_bytes: int
    ) -> None:
        source = ids_of(write_ids(tmp_path / "a.parquet", ROWS, type_))
        store = store_of(source, tmp_path, vocab_size=50_000, split_bytes=split_bytes)
        assert documents_of(store.directory) == GOOD
        assert len(store.parts) == (4 if split_bytes == 1 else 1)
        assert rejects_of(store) == [
            ("a.parquet", 1, "missing_tokens", "'input_ids' is null"),
            ("a.parquet", 2, "no_tokens", "a document without tokens"),
            ("a.parquet", 4, "id_out_of_range", "token 1 is null; ids are 0 to 49999"),
            ("a.parquet", 5, "id_out_of_range", "token 1 is 70000; ids are 0 to 49999"),
        ]
        assert [store.origin_of(doc_id)[1] for doc_id in range(3)] == [0, 3, 6]

    @pytest.mark.parametrize("kind", ["stream", "file"])
    @pytest.mark.parametrize("split_bytes", [1, 1 << 20])
    def test_arrow_files_and_streams_give_the_same_documents(
        self, tmp_path: Path, kind: str, split_bytes: int
    ) -> None:
        table = pq.read_table(write_ids(tmp_path / "a.parquet", ROWS))
        open_writer = pa.ipc.new_stream if kind == "stream" else pa.ipc.new_file
        with open_writer(tmp_path / "a.arrow", table.schema) as writer:
            writer.write_table(table, max_chunksize=2)
        source = ids_of(tmp_path / "a.arrow")
        store = store_of(source, tmp_path, vocab_size=50_000, split_bytes=split_bytes)
        assert documents_of(store.directory) == GOOD
        assert len(store.parts) == (4 if split_bytes == 1 else 1)
        assert [(record, reason) for _, record, reason, _ in rejects_of(store)] == [
            (1, "missing_tokens"),
            (2, "no_tokens"),
            (4, "id_out_of_range"),
            (5, "id_out_of_range"),
        ]
        with pytest.raises(SourceError, match=r"holds string there.*input_ids, labels"):
            store_of(ids_of(tmp_path / "a.arrow", token_column="text"), tmp_path)

    def test_a_damaged_arrow_file_is_named(self, tmp_path: Path) -> None:
        table = pq.read_table(
            write_ids(tmp_path / "a.parquet", [[number] * 50 for number in range(99)])
        )
        with pa.ipc.new_stream(tmp_path / "a.arrow", table.schema) as writer:
            writer.write_table(table)
        source = ids_of(tmp_path / "a.arrow")
        (split,) = plan_splits(source, list_inputs(source), split_bytes=1 << 20)
        content = (tmp_path / "a.arrow").read_bytes()
        (tmp_path / "a.arrow").write_bytes(content[: len(content) // 2])
        with pytest.raises(SourceError, match=r"a\.arrow: record batches in bytes \d+ to \d+"):
            list(read_tokens(split, source, longest=100))

    def test_rows_of_one_length_may_be_a_fixed_size_list(self, tmp_path: Path) -> None:
        rows = [[1, 2], [3, 4], None, [5, 6]]
        source = ids_of(write_ids(tmp_path / "a.parquet", rows, pa.list_(pa.int32(), 2)))
        store = store_of(source, tmp_path)
        assert documents_of(store.directory) == [[1, 2], [3, 4], [5, 6]]
        assert rejects_of(store)[0][1:3] == (2, "missing_tokens")

    @pytest.mark.parametrize(
        "type_", [pa.list_(pa.int32()), pa.large_list(pa.int16()), pa.list_(pa.int32(), 2),
                  pa.list_view(pa.int32()), pa.large_list_view(pa.int32())], ids=str
    )  # fmt: skip
    def test_every_type_of_list_gives_the_same_ids(self, type_: pa.DataType) -> None:
        column = pa.array([[8, 8], [1, 2], None, [3, None], [9, 9]], type_).slice(1, 3)
        ids, valid, lengths, there = column_ids(column)
        assert ids.tolist() == [1, 2, 3, 0]
        assert valid.tolist() == [True, True, True, False]
        assert lengths[there].tolist() == [2, 2]
        assert list_lengths(column)[there].tolist() == [2, 2]
        assert there.tolist() == [True, False, True]

    def test_negative_ids_and_ids_beyond_int64_are_refused(self, tmp_path: Path) -> None:
        signed = write_ids(tmp_path / "a.parquet", [[1], [-1]], pa.list_(pa.int8()))
        giant = write_ids(tmp_path / "b.parquet", [[2**64 - 1], [2]], pa.list_(pa.uint64()))
        store = store_of(ids_of(signed, giant), tmp_path)
        assert documents_of(store.directory) == [[1], [2]]
        assert [detail for *_, detail in rejects_of(store)] == [
            "token 0 is -1; ids are 0 to 99999",
            "token 0 is 18446744073709551615; ids are 0 to 99999",
        ]

    @pytest.mark.parametrize(
        ("column", "words"),
        [
            ("text", r"holds string there, not lists of integers; .*: input_ids, labels"),
            ("scores", r"holds list<element: double> there, not lists of integers"),
            ("ids", r"token_column is 'ids' but the file has no such column"),
        ],
    )
    def test_a_column_that_does_not_hold_ids_is_refused_with_those_that_do(
        self, tmp_path: Path, column: str, words: str
    ) -> None:
        source = ids_of(write_ids(tmp_path / "a.parquet", ROWS), token_column=column)
        with pytest.raises(SourceError, match=words):
            plan_splits(source, list_inputs(source), split_bytes=1)

    def test_ids_in_lines_of_json_are_refused(self, tmp_path: Path) -> None:
        source = ids_of(write_jsonl(tmp_path / "a.jsonl", ["x"]))
        with pytest.raises(SourceError, match=r"for Parquet and Arrow, but .*a\.jsonl is jsonl"):
            plan_splits(source, list_inputs(source), split_bytes=1)

    def test_a_damaged_file_stops_the_reading_and_is_named(self, tmp_path: Path) -> None:
        path = write_ids(tmp_path / "a.parquet", [[number] * 50 for number in range(200)])
        content = bytearray(path.read_bytes())
        content[8:2000] = bytes(1992)
        path.write_bytes(content)
        with pytest.raises(SourceError, match=r"a\.parquet: row groups 0 to \d+ cannot be read"):
            store_of(ids_of(path), tmp_path)


class TestEnds:
    ROWS: Rows = ([5, 6], [EOS_ID], [BOS_ID, 7], [8, EOS_ID], [BOS_ID, EOS_ID], [BOS_ID])

    @pytest.mark.parametrize(
        ("ends", "bos", "expected"),
        [
            (None, True, [list(row) for row in ROWS if row]),
            ("as_given", True, [list(row) for row in ROWS if row]),
            ("add", False, [[5, 6, 1], [1], [0, 7, 1], [8, 1], [0, 1], [0, 1]]),
            ("add", True, [[0, 5, 6, 1], [0, 1], [0, 7, 1], [0, 8, 1], [0, 1], [0, 1]]),
        ],
    )
    def test_ends_are_as_given_or_added_where_a_document_lacks_them(
        self, tmp_path: Path, ends: str | None, bos: bool, expected: list[list[int]]
    ) -> None:
        identity = tiny_identity(add_bos=bos)
        source = ids_of(write_ids(tmp_path / "a.parquet", self.ROWS), ends=ends)
        store = TokenStore(build_store(source, tmp_path, identity=identity))
        assert documents_of(store.directory) == expected
        assert store.identity["ends"] == (ends or "as_given")

    def test_ends_count_towards_the_longest_document(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(tokenize, "MAX_DOCUMENT_TOKENS", 3)
        path = write_ids(tmp_path / "a.parquet", [[5, 6], [5, 6, 7], [5, 6, EOS_ID]])
        source = ids_of(path, ends="add")
        store = TokenStore(build_store(source, tmp_path, identity=tiny_identity()))
        assert documents_of(store.directory) == [[5, 6, EOS_ID], [5, 6, EOS_ID]]
        detail = "4 tokens, at most 3 are allowed"
        assert rejects_of(store) == [("a.parquet", 1, "too_long", detail)]

    def test_a_source_of_text_has_no_ends_of_its_own(self, tmp_path: Path) -> None:
        store = TokenStore(build_store(source_of(write_jsonl(tmp_path / "a", ["x"]),
                                                 format="jsonl"), tmp_path))  # fmt: skip
        assert "ends" not in store.identity

    def test_the_key_of_a_store_depends_on_column_and_ends(self, tmp_path: Path) -> None:
        path = write_ids(tmp_path / "a.parquet", [[5]])
        variants = [{}, {"ends": "as_given"}, {"ends": "add"}, {"token_column": "labels"}]
        keys = []
        for source in [ids_of(path, **variant) for variant in variants] + [source_of(path)]:
            inputs = list_inputs(source)
            digests = [digest_file(file.path) for file in inputs]
            keys.append(store_key(source, inputs, digests, tiny_identity(), 1))
        assert keys[0] == keys[1]
        assert len(set(keys)) == 4

    def test_what_is_added_is_said(self) -> None:
        identity = tiny_identity(add_bos=True)
        assert ends_text("as_given", identity) == (
            "brings its own tokens; ends as given, nothing is added"
        )
        assert ends_text("add", identity) == (
            "brings its own tokens; BOS id 0 before every document that does not begin with it; "
            "EOS id 1 after every document that does not end with it"
        )


class TestNoVocabulary:
    @pytest.mark.parametrize(("vocab_size", "dtype"), [(1 << 16, "uint16"), (65_537, "uint32")])
    def test_the_size_alone_gives_the_type_and_the_bound(
        self, tmp_path: Path, vocab_size: int, dtype: str
    ) -> None:
        source = ids_of(write_ids(tmp_path / "a.parquet", [[vocab_size - 1], [vocab_size]]))
        store = store_of(source, tmp_path, vocab_size=vocab_size)
        assert documents_of(store.directory) == [[vocab_size - 1]]
        assert store.dtype == dtype
        assert store.identity["tokenizer"]["vocab_size"] == vocab_size

    def test_there_is_nothing_to_encode_or_decode_with(self) -> None:
        identity = without_vocabulary(100)
        assert policy_text(identity) == "none: sources bring ids below 100"
        with pytest.raises(TokenizerError, match=r"no vocabulary .*vocab_size = 100"):
            load_engine(identity)
