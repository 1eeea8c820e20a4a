from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.reading.listing import list_inputs
from pipeline.reading.sources import plan_splits
from pipeline.reading.storage import digest_file
from pipeline.settings.documents import SourceConfig
from pipeline.shard import schema
from pipeline.shard.token_store import StoreError, TokenStore
from pipeline.stores import tokenize
from pipeline.stores.finish import finish_store, part_is_there
from pipeline.stores.part_files import TableWriter, table_at
from pipeline.stores.tokenize import StorePartReceipt, tokenize_split
from pipeline.tokenizer import documents
from pipeline.tokenizer.cuts import PART_CHARACTERS, Cutter
from pipeline.tokenizer.documents import DocumentEncoder
from pipeline.tokenizer.engine import load_engine
from pipeline.tokenizer.identity import TokenizerIdentity
from pipeline.tokenizer.reference import Engine
from pipeline.tokenizer.vocabulary import load_reference
from tests.corpora import (
    BOS_ID,
    EOS_ID,
    build_store,
    some_texts,
    source_of,
    texts_of_lengths,
    tiny_identity,
    write_bytes,
    write_jsonl,
    write_parquet,
    write_tree,
)

KEY = "ab" * 32


def contents(directory: Path) -> dict[str, bytes]:
    files = (file for file in sorted(directory.rglob("*")) if file.is_file())
    return {str(file.relative_to(directory)): file.read_bytes() for file in files}


def tokenize_all(
    source: SourceConfig, directory: Path, *, split_bytes: int = 1 << 20, **identity: Any
) -> tuple[list[StorePartReceipt], Callable[..., dict[str, Any]]]:
    """The receipts of a source, and what finishes the store when it is called."""
    inputs = list_inputs(source)
    made_with: TokenizerIdentity = replace(tiny_identity(), **identity)
    splits = plan_splits(source, inputs, split_bytes=split_bytes)
    receipts = [tokenize_split(split, source, made_with, directory) for split in splits]

    def finish(**changes: Any) -> dict[str, Any]:
        settings = {
            "name": source.name,
            "key": KEY,
            "identity": made_with,
            "inputs": inputs,
            "digests": [digest_file(file.path) for file in inputs],
            "receipts": receipts,
            "splits": splits,
        }
        return finish_store(directory, **{**settings, **changes})

    return receipts, finish


def documents_of(directory: Path) -> list[list[int]]:
    store = TokenStore(directory)
    return [store.tokens_of(doc_id).tolist() for doc_id in range(store.documents)]


def rejects_of(directory: Path) -> list[tuple[str, int, str]]:
    rows = pq.read_table(directory / "rejects.parquet").to_pylist()
    return [(row["path"], row["record"], row["reason"]) for row in rows]


class TestDocuments:
    def test_a_document_is_what_the_engine_makes_of_its_text_with_eos_behind(
        self, tmp_path: Path
    ) -> None:
        texts = some_texts(60)
        directory = build_store(source_of(write_jsonl(tmp_path / "a.jsonl", texts)), tmp_path)
        ids, lengths = load_engine(tiny_identity()).encode(texts)
        expected = [[*part.tolist(), EOS_ID] for part in np.split(ids, np.cumsum(lengths)[:-1])]
        assert documents_of(directory) == expected
        assert len(TokenStore(directory).parts) > 1

    @pytest.mark.parametrize(
        ("bos", "eos", "expected"),
        [
            (False, False, [[5, 6], [7]]),
            (True, False, [[BOS_ID, 5, 6], [BOS_ID, 7]]),
            (False, True, [[5, 6, EOS_ID], [7, EOS_ID]]),
            (True, True, [[BOS_ID, 5, 6, EOS_ID], [BOS_ID, 7, EOS_ID]]),
        ],
    )
    def test_ends_are_added_once_at_the_true_ends(
        self, bos: bool, eos: bool, expected: list[list[int]]
    ) -> None:
        identity = tiny_identity(add_bos=bos, add_eos=eos)
        ids, lengths = np.array([5, 6, 7], np.uint16), np.array([2, 1])
        ids, lengths = tokenize._with_ends(ids, lengths, identity)
        assert [part.tolist() for part in np.split(ids, np.cumsum(lengths)[:-1])] == expected
        assert ids.dtype == np.uint16

    def test_documents_know_which_record_they_were(self, tmp_path: Path) -> None:
        lines = [b"", b'{"text": "a"}', b"oops", b'{"text": "b"}'] * 20
        write_bytes(tmp_path / "in/a.jsonl", b"\n".join(lines))
        write_jsonl(tmp_path / "in/b.jsonl", ["c", "d"])
        directory = build_store(source_of(tmp_path / "in"), tmp_path, split_bytes=50)
        store = TokenStore(directory)
        origins = [store.origin_of(doc_id) for doc_id in range(store.documents)]
        odd = [("a.jsonl", number) for number in range(1, 80, 2)]  # blank lines count
        assert origins == [*odd, ("b.jsonl", 0), ("b.jsonl", 1)]
        assert len(store.parts) > 10
        assert rejects_of(directory) == [
            ("a.jsonl", number, "broken_json") for number in range(2, 80, 4)
        ]

    def test_a_document_without_a_token_is_refused(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        class Silent(Engine):
            def encode(self, texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
                lengths = np.array([0 if text == "mute" else 1 for text in texts])
                return np.full(lengths.sum(), 9, np.uint16), lengths

        encoder = DocumentEncoder(Silent(), lambda: Cutter(load_reference(tiny_identity())))
        monkeypatch.setattr(tokenize, "load_encoder", lambda identity: encoder)
        source = source_of(write_jsonl(tmp_path / "a.jsonl", ["a", "mute", "", "b", "mute"]))
        receipts, finish = tokenize_all(source, tmp_path / "store", eos_id=None)
        assert receipts[0].rejected == (("empty_text", 1), ("no_tokens", 2))
        assert finish()["text_bytes"] == 2
        assert documents_of(tmp_path / "store") == [[9], [9]]
        assert rejects_of(tmp_path / "store") == [
            ("a.jsonl", 1, "no_tokens"),
            ("a.jsonl", 2, "empty_text"),
            ("a.jsonl", 4, "no_tokens"),
        ]

    def test_a_document_of_too_many_tokens_is_refused(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(tokenize, "MAX_DOCUMENT_TOKENS", 10)
        path = write_jsonl(tmp_path / "a.jsonl", texts_of_lengths([10, 11, 5]))
        directory = build_store(source_of(path), tmp_path)
        assert TokenStore(directory).lengths.tolist() == [10, 5]
        assert rejects_of(directory) == [("a.jsonl", 1, "too_long")]

    def test_a_text_too_long_to_be_encoded_in_one_and_without_a_place_to_cut_is_refused(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(documents, "MAX_UNBROKEN_BYTES", 4 * PART_CHARACTERS)
        run = "a" * (4 * PART_CHARACTERS + 1)
        path = write_jsonl(tmp_path / "a.jsonl", ["a b", run, "b a " * PART_CHARACTERS, "c"])
        directory = build_store(source_of(path), tmp_path)
        assert rejects_of(directory) == [("a.jsonl", 1, "unbroken")]
        assert len(TokenStore(directory).lengths) == 3


class TestSplits:
    @given(data=st.data(), kind=st.sampled_from(["jsonl", "parquet", "text"]))
    @settings(max_examples=12, deadline=None)
    def test_where_the_cuts_fall_changes_no_document_record_or_reject(
        self, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, kind: str
    ) -> None:
        root = tmp_path_factory.mktemp("cuts")
        texts = data.draw(st.lists(st.text("ab \u6f22", max_size=9), min_size=1, max_size=6))
        if kind == "jsonl":
            write_jsonl(root / "in/a.jsonl", texts)
            write_jsonl(root / "in/b.jsonl", texts[::-1])
        elif kind == "parquet":
            write_parquet(root / "in/a.parquet", texts, rows_per_group=2)
            write_parquet(root / "in/b.parquet", texts[::-1], rows_per_group=1)
        else:
            write_tree(root / "in", {f"{i}.txt": text for i, text in enumerate(texts)})
        source = source_of(root / "in")
        found = []
        for split_bytes in (1 << 20, data.draw(st.integers(1, 80))):
            directory = build_store(source, root, split_bytes=split_bytes)
            store = TokenStore(directory)
            origins = [store.origin_of(doc_id) for doc_id in range(store.documents)]
            for part in range(len(store.parts)):
                store.verify_part(part)
            found.append((documents_of(directory), origins, rejects_of(directory)))
        assert found[0] == found[1]

    def test_the_same_split_gives_the_same_bytes_and_replaces_what_was_there(
        self, tmp_path: Path
    ) -> None:
        source = source_of(write_jsonl(tmp_path / "a.jsonl", [*some_texts(30), ""]))
        receipts, _ = tokenize_all(source, tmp_path / "store", split_bytes=2000)
        first = contents(tmp_path / "store")
        again, _ = tokenize_all(source, tmp_path / "store", split_bytes=2000)
        assert again == receipts
        assert contents(tmp_path / "store") == first

    def test_a_writer_that_dies_leaves_no_part(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def broken(*arguments: object) -> None:
            raise OSError("no space left")

        monkeypatch.setattr(tokenize.BlockedFile, "close", broken)
        source = source_of(write_jsonl(tmp_path / "a.jsonl", ["a"]))
        with pytest.raises(OSError, match="no space left"):
            tokenize_all(source, tmp_path / "store")
        assert contents(tmp_path / "store") == {}

    def test_batches_leave_no_trace_in_the_bytes(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        source = source_of(write_jsonl(tmp_path / "a.jsonl", some_texts(80)))
        receipts = []
        for records, place in ((1024, "whole"), (7, "bits")):
            monkeypatch.setattr("pipeline.reading.records.read.BATCH_RECORDS", records)
            receipts += tokenize_all(source, tmp_path / place)[0]
        assert receipts[0] == receipts[1]
        assert contents(tmp_path / "whole") == contents(tmp_path / "bits")

    def test_a_receipt_goes_through_json_unchanged(self, tmp_path: Path) -> None:
        source = source_of(write_jsonl(tmp_path / "a.jsonl", ["a", "", " ", "b"]))
        ((receipt,), _) = tokenize_all(source, tmp_path / "store")
        assert StorePartReceipt.from_dict(json.loads(json.dumps(receipt.as_dict()))) == receipt
        assert receipt.rejected == (("empty_text", 2),)
        assert (receipt.documents, receipt.tokens, receipt.records) == (2, 4, 4)
        assert (receipt.tokens_bytes, receipt.text_bytes) == (8, 2)


class TestFinishing:
    @pytest.fixture
    def source(self, tmp_path: Path) -> SourceConfig:
        return source_of(write_jsonl(tmp_path / "a.jsonl", [*some_texts(30), ""]))

    def test_the_tables_are_those_of_the_format(self, source: SourceConfig, tmp_path: Path) -> None:
        receipts, finish = tokenize_all(source, tmp_path / "store", split_bytes=2000)
        content = finish(receipts=receipts[::-1])  # in any order
        assert content == json.loads((tmp_path / "store/source.json").read_bytes())
        assert content["rejected"] == {"empty_text": 1}
        assert content["documents"] == 30
        assert (content["name"], content["key"], content["dtype"]) == ("corpus", KEY, "uint16")
        for name, columns in (
            ("inputs", schema.INPUTS),
            ("parts", schema.PARTS),
            ("rejects", schema.REJECTS),
            ("parts/00000.index", schema.PART_INDEX),
            ("parts/00000.blocks", schema.PART_BLOCKS),
        ):
            assert pq.read_schema(tmp_path / f"store/{name}.parquet").equals(columns)
        ending = {name.partition(".")[2] for name in contents(tmp_path / "store/parts")}
        assert ending == {"tokens", "index.parquet", "blocks.parquet"}

    def test_it_is_a_store_only_when_all_is_written_and_can_be_tried_again(
        self, source: SourceConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def killed(*arguments: object) -> None:
            raise KeyboardInterrupt

        _, finish = tokenize_all(source, tmp_path / "store")
        with monkeypatch.context() as patch:
            patch.setattr("pipeline.stores.finish.write_atomically", killed)
            with pytest.raises(KeyboardInterrupt):
                finish()
        with pytest.raises(StoreError, match="was not finished, run the job again"):
            TokenStore(tmp_path / "store")
        (tmp_path / "store/parts/.00007.tokens.tmp").touch()  # of a writer that was killed
        content = finish()
        after = contents(tmp_path / "store")
        assert not any(".tmp" in name for name in after)
        assert finish(receipts=[]) == content  # nothing left to do
        assert contents(tmp_path / "store") == after

    def test_a_split_without_a_receipt_is_told(self, source: SourceConfig, tmp_path: Path) -> None:
        receipts, finish = tokenize_all(source, tmp_path / "store", split_bytes=2000)
        with pytest.raises(StoreError, match=f"{len(receipts) - 1} receipts for {len(receipts)}"):
            finish(receipts=receipts[1:])

    @pytest.mark.parametrize("ending", ["index.parquet", "tokens", "rejects.parquet"])
    def test_a_part_that_is_not_what_its_receipt_says_is_told(
        self, source: SourceConfig, tmp_path: Path, ending: str
    ) -> None:
        _, finish = tokenize_all(source, tmp_path / "store")
        (tmp_path / f"store/parts/00000.{ending}").unlink()
        with pytest.raises(StoreError, match=r"tokenize (split 0|that split) again"):
            finish()
        assert not (tmp_path / "store/source.json").exists()

    @pytest.mark.parametrize("ending", ["index.parquet", "blocks.parquet", "tokens"])
    def test_a_part_that_changed_is_not_there_any_more(
        self, source: SourceConfig, tmp_path: Path, ending: str
    ) -> None:
        (receipt, *_), _ = tokenize_all(source, tmp_path / "store")
        assert part_is_there(tmp_path / "store", receipt)
        path = tmp_path / f"store/parts/00000.{ending}"
        path.write_bytes(path.read_bytes()[:-1])
        assert not part_is_there(tmp_path / "store", receipt)
        path.unlink()
        assert not part_is_there(tmp_path / "store", receipt)

    def test_another_store_is_not_touched(self, source: SourceConfig, tmp_path: Path) -> None:
        _, finish = tokenize_all(source, tmp_path / "store")
        finish()
        with pytest.raises(StoreError, match=f"holds the store with key {KEY}, not {'cd' * 32}"):
            finish(key="cd" * 32)

    def test_a_source_without_an_acceptable_record_is_a_store_without_documents(
        self, tmp_path: Path
    ) -> None:
        write_tree(tmp_path / "in", {"a.jsonl": "", "b.jsonl": "{}\n"})
        for source, parts in (
            (source_of(tmp_path / "in/a.jsonl"), 0),
            (source_of(tmp_path / "in/b.jsonl"), 1),
        ):
            store = TokenStore(build_store(source, tmp_path))
            assert (store.documents, store.tokens, len(store.parts)) == (0, 0, parts)
            assert (store.lengths.dtype, len(store.lengths)) == (np.dtype("<u4"), 0)
            nothing = np.empty(0, np.int64)
            assert len(store.gather(nothing, nothing, nothing)) == 0
            store.check_tables()
            for part in range(parts):
                store.verify_part(part)


class TestTables:
    @given(cuts=st.lists(st.integers(0, 9), max_size=12))
    @settings(max_examples=30, deadline=None)
    def test_how_rows_came_together_leaves_no_trace(
        self, tmp_path_factory: pytest.TempPathFactory, cuts: list[int]
    ) -> None:
        root = tmp_path_factory.mktemp("table")
        values = list(range(sum(cuts)))
        columns = pa.schema({"value": pa.int64()})
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("pipeline.stores.part_files._GROUP_ROWS", 4)
            with table_at(root / "bits.parquet", columns) as table:
                start = 0
                for count in cuts:
                    table.append([values[start : start + count]])
                    start += count
            with TableWriter(root / "whole.parquet", columns) as table:
                table.append([values])
        assert (root / "bits.parquet").read_bytes() == (root / "whole.parquet").read_bytes()
        metadata = pq.read_metadata(root / "bits.parquet")
        assert metadata.num_rows == len(values)
        sizes = [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)]
        assert all(size == 4 for size in sizes[:-1])
