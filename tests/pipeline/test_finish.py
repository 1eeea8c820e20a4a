"""A store is one when all of it is written, and says what it was made of."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from pipeline.settings.documents import SourceConfig
from pipeline.shard import schema
from pipeline.shard.token_store import StoreError, TokenStore
from pipeline.stores.finish import part_is_there
from tests.corpora import build_store, some_texts, source_of, write_jsonl, write_tree
from tests.pipeline.tokenized import KEY, contents, tokenize_all


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
