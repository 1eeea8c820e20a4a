"""Documents are what the engine makes of records, wherever the cuts of splits fall."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.shard.token_store import TokenStore
from pipeline.stores import tokenize
from pipeline.stores.tokenize import StorePartReceipt
from pipeline.tokenizer import documents
from pipeline.tokenizer.cuts import PART_CHARACTERS, Cutter
from pipeline.tokenizer.documents import DocumentEncoder
from pipeline.tokenizer.engine import load_engine
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
from tests.pipeline.tokenized import contents, documents_of, rejects_of, tokenize_all


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
