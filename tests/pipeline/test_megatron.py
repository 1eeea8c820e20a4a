"""Megatron datasets as sources; the fixtures are made by Megatron's own builder."""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.reading import megatron, token_records
from pipeline.reading.listing import list_inputs
from pipeline.reading.megatron import check_index, open_index
from pipeline.reading.source_error import SourceError
from pipeline.reading.splits import plan_splits
from pipeline.settings.documents import SourceConfig
from pipeline.stores import tokenize
from tests.corpora import source_of
from tests.pipeline.id_stores import rejects_of, store_of
from tests.pipeline.tokenized import documents_of
from tests.reference_megatron import read_megatron, write_megatron

FIXTURES = Path(__file__).parents[1] / "fixtures" / "megatron"
EXPECTED: dict[str, list[list[int]]] = json.loads((FIXTURES / "expected.json").read_text())
INT32 = 4


def pair_of(*paths: Path, **settings: object) -> SourceConfig:
    return source_of(*paths, format="megatron", **settings)


class TestDocuments:
    @pytest.mark.parametrize("name", ["one_sequence", "many_sequences", "text_modes"])
    @pytest.mark.parametrize("split_bytes", [1, 64, 1 << 20])
    def test_documents_are_those_that_megatron_wrote(
        self, tmp_path: Path, name: str, split_bytes: int
    ) -> None:
        expected = EXPECTED[name]
        assert read_megatron(FIXTURES / name) == expected
        source = pair_of(FIXTURES / f"{name}.idx")
        store = store_of(source, tmp_path, split_bytes=split_bytes)
        assert documents_of(store.directory) == [ids for ids in expected if ids]
        empty = [number for number, ids in enumerate(expected) if not ids]
        assert [(path, record, why) for path, record, why, _ in rejects_of(store)] == [
            (f"{name}.idx", number, "no_tokens") for number in empty
        ]
        kept = [number for number, ids in enumerate(expected) if ids]
        assert [store.origin_of(doc_id) for doc_id in range(store.documents)] == [
            (f"{name}.idx", number) for number in kept
        ]

    @given(
        documents=st.lists(
            st.lists(st.lists(st.integers(-128, 127), max_size=6), max_size=3), max_size=12
        ),
        code=st.sampled_from([1, 2, 3, 4, 5, 8]),
        split_bytes=st.integers(1, 60),
        batch=st.tuples(st.integers(1, 40), st.integers(1, 4)),
    )
    @settings(max_examples=40, deadline=None)
    def test_any_type_split_and_batch_gives_the_documents_of_the_slow_twin(
        self,
        tmp_path_factory: pytest.TempPathFactory,
        documents: list[list[list[int]]],
        code: int,
        split_bytes: int,
        batch: tuple[int, int],
    ) -> None:
        if code in (1, 8):
            documents = [[[abs(i) for i in text] for text in texts] for texts in documents]
        directory = tmp_path_factory.mktemp("pair")
        index = write_megatron(directory / "a", documents, code)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(token_records, "BATCH_BYTES", batch[0])
            patch.setattr(token_records, "BATCH_RECORDS", batch[1])
            store = store_of(pair_of(index), directory, vocab_size=100, split_bytes=split_bytes)
        whole = read_megatron(directory / "a")
        good = [ids for ids in whole if ids and min(ids) >= 0 and max(ids) < 100]
        assert documents_of(store.directory) == good
        assert sum(store.identity["rejected"].values()) == len(whole) - len(good)
        lengths = open_index(index).document_lengths(0, len(whole))
        assert lengths.tolist() == [len(ids) for ids in whole]

    def test_an_id_outside_the_vocabulary_refuses_its_document_alone(self, tmp_path: Path) -> None:
        index = write_megatron(tmp_path / "a", [[[1, 2]], [[3], [9, 4]], [[-5]], [[8, 0]]], INT32)
        store = store_of(pair_of(index), tmp_path, vocab_size=9)
        assert documents_of(store.directory) == [[1, 2], [8, 0]]
        assert rejects_of(store) == [
            ("a.idx", 1, "id_out_of_range", "token 1 is 9; ids are 0 to 8"),
            ("a.idx", 2, "id_out_of_range", "token 0 is -5; ids are 0 to 8"),
        ]
        assert store.dtype == np.uint16

    @pytest.mark.parametrize("batch_records", [1, 100])
    def test_a_document_over_the_limit_is_refused(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, batch_records: int
    ) -> None:
        monkeypatch.setattr(tokenize, "MAX_DOCUMENT_TOKENS", 3)
        monkeypatch.setattr(token_records, "BATCH_RECORDS", batch_records)
        index = write_megatron(tmp_path / "a", [[[1] * 3], [[1] * 4], [[2]]], INT32)
        store = store_of(pair_of(index), tmp_path)
        assert documents_of(store.directory) == [[1] * 3, [2]]
        detail = "4 tokens, at most 3 are allowed"
        assert rejects_of(store) == [("a.idx", 1, "too_long", detail)]


class TestSplits:
    def test_one_file_is_many_splits_cut_between_documents(self) -> None:
        source = pair_of(FIXTURES / "one_sequence")
        inputs = list_inputs(source)
        splits = plan_splits(source, inputs, split_bytes=256)
        assert [split.start for split in splits[1:]] == [split.stop for split in splits[:-1]]
        assert (splits[0].start, splits[-1].stop) == (0, 80)
        assert sum(split.num_bytes for split in splits) == inputs[0].bytes
        assert all(split.num_bytes <= 256 or split.stop == split.start + 1 for split in splits)
        assert len(splits) > 10
        assert {split.names for split in splits} == {("one_sequence.idx", "one_sequence.bin")}

    def test_a_dataset_without_documents_has_no_split(self, tmp_path: Path) -> None:
        source = pair_of(write_megatron(tmp_path / "a", [], INT32))
        assert plan_splits(source, list_inputs(source), split_bytes=1) == ()


class TestPaths:
    @pytest.mark.parametrize("path", ["d/a.idx", "d/a.bin", "d/a", "d/a*", "d/?.idx", "d", "*/a"])
    def test_an_index_ids_a_prefix_a_glob_or_a_directory_name_both_files(
        self, tmp_path: Path, path: str
    ) -> None:
        (tmp_path / "d").mkdir()
        write_megatron(tmp_path / "d/a", [[[1]]], INT32)
        (tmp_path / "d/README.md").write_text("not a dataset")
        names = [file.name.removeprefix("d/") for file in list_inputs(pair_of(tmp_path / path))]
        assert names == ["a.bin", "a.idx"]

    def test_datasets_are_in_the_order_of_their_names(self, tmp_path: Path) -> None:
        for token, name in enumerate(["b", "a", "a.b", "a.cc"]):
            write_megatron(tmp_path / name, [[[token]]], INT32)
        store = store_of(pair_of(tmp_path), tmp_path / "out")
        assert documents_of(store.directory) == [[2], [3], [1], [0]]

    def test_half_a_pair_is_refused(self, tmp_path: Path) -> None:
        write_megatron(tmp_path / "a", [[[1]]], INT32)
        (tmp_path / "a.bin").unlink()
        with pytest.raises(SourceError, match=r"a\.bin is missing beside .*a\.idx"):
            list_inputs(pair_of(tmp_path))

    def test_nothing_there_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(SourceError, match=r"'.*nowhere' does not exist"):
            list_inputs(pair_of(tmp_path / "nowhere"))
        with pytest.raises(SourceError, match='with format "megatron" matches no file'):
            list_inputs(pair_of(tmp_path))

    def test_a_dataset_behind_a_url_is_refused(self) -> None:
        source = SourceConfig(name="a", paths=("s3://bucket/a",), format="megatron")
        with pytest.raises(SourceError, match="is remote, but a Megatron dataset is mapped"):
            list_inputs(source)

    def test_a_pair_under_format_auto_is_not_taken_for_text(self, tmp_path: Path) -> None:
        write_megatron(tmp_path / "a", [[[1]]], INT32)
        source = source_of(tmp_path)
        with pytest.raises(SourceError, match='set format to "megatron"'):
            plan_splits(source, list_inputs(source), split_bytes=1)


def at(offset: int, layout: str, value: object) -> Callable[[bytearray], None]:
    def change(content: bytearray) -> None:
        struct.pack_into(layout, content, offset, value)

    return change


class TestDamage:
    """Three sequences of int32: `lengths` at 34, `pointers` at 46, first sequences at 70."""

    @pytest.mark.parametrize(
        ("change", "words"),
        [
            (at(0, "<7s", b"IDIDIDX"), "begins with b'IDIDIDX.*, not b'MMIDIDX"),
            (at(9, "<Q", 2), "version 2; only version 1"),
            (at(17, "<B", 6), "dtype code 6: floating-point"),
            (at(17, "<B", 7), "dtype code 7: floating-point"),
            (at(17, "<B", 9), r"dtype code 9; known: 1 \(uint8\)"),
            (at(18, "<Q", 4), "has 94 bytes, but 4 sequences and 3 document indices make 106"),
            (at(26, "<Q", 2), "has 94 bytes, but 3 sequences and 2 document indices make 86"),
            (lambda content: content.__delitem__(slice(20, None)), "has 20 bytes, less than"),
            (lambda content: content.__delitem__(slice(-1, None)), "has 93 bytes, but 3 seq"),
            (lambda content: content.clear(), "begins with b''"),
            (at(34, "<i", -2), "sequence 0 has -2 tokens at byte 0"),
            (at(38, "<i", 7), "sequence 2 has 1 tokens at byte 16, but .* end to end"),
            (at(54, "<q", 9), "sequence 1 has 2 tokens at byte 9"),
            (at(70, "<q", 1), "take the sequences 1 to 3, but it has 3"),
            (at(86, "<q", 2), "take the sequences 0 to 2, but it has 3"),
            (at(78, "<q", 5), "document 1 ends before it begins"),
        ],
    )
    def test_a_damaged_index_is_named_with_what_was_found(
        self,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        change: Callable[[bytearray], None],
        words: str,
    ) -> None:
        monkeypatch.setattr(megatron, "_CHECK_ROWS", 2)
        index = write_megatron(tmp_path / "a", [[[1, 2], [3, 4]], [[5]]], INT32)
        check_index(open_index(index))
        content = bytearray(index.read_bytes())
        change(content)
        index.write_bytes(content)
        source = pair_of(index)
        with pytest.raises(SourceError, match=words):
            plan_splits(source, list_inputs(source), split_bytes=1 << 20)

    @pytest.mark.parametrize(
        ("change", "words"), [(-4, "a.bin is truncated: it has 16 bytes, and .* says 20"),
                              (4, "a.bin is longer than its .idx says: it has 24 bytes")]
    )  # fmt: skip
    def test_ids_of_another_size_are_refused_when_planning_and_when_reading(
        self, tmp_path: Path, change: int, words: str
    ) -> None:
        source = pair_of(write_megatron(tmp_path / "a", [[[1, 2], [3, 4]], [[5]]], INT32))
        (split,) = plan_splits(source, list_inputs(source), split_bytes=1 << 20)
        content = (tmp_path / "a.bin").read_bytes() + bytes(4)
        (tmp_path / "a.bin").write_bytes(content[: 20 + change])
        with pytest.raises(SourceError, match=words):
            plan_splits(source, list_inputs(source), split_bytes=1 << 20)
        with pytest.raises(SourceError, match=words):
            list(token_records.read_tokens(split, source, longest=10))

    def test_images_among_the_text_are_refused(self, tmp_path: Path) -> None:
        for ending in megatron.ENDINGS:
            shutil.copy(FIXTURES / f"image_modes{ending}", tmp_path)
        source = pair_of(tmp_path)
        with pytest.raises(SourceError, match="multimodal: sequence 1 has mode 1; only text"):
            plan_splits(source, list_inputs(source), split_bytes=1)
