"""Arrow files and streams: cut between record batches, read without the rest, damage named."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import feather, ipc

from pipeline.reading.arrow_ipc import ArrowError, messages
from pipeline.reading.listing import SourceError, list_inputs
from pipeline.reading.records.read import read_records
from pipeline.reading.splits import plan_splits
from tests.corpora import source_of, write_arrow, write_bytes

TEXTS = ["a", None, "", "b" * 3000, "\u6f22", "c", "d"]
KINDS = ("stream", "file")


def read(path: Path, *, split_bytes: int = 1 << 20, **settings: object) -> list[list[object]]:
    """A list a split: texts of accepted records and reasons of the others, by record number."""
    source = source_of(path, **settings)
    found = []
    for split in plan_splits(source, list_inputs(source), split_bytes=split_bytes):
        rows: dict[int, object] = {}
        for batch in read_records(split, source):
            rows |= dict(zip(batch.record, batch.texts, strict=True))
            rows |= {reject.record: reject.reason for reject in batch.rejects}
        assert sorted(rows) == list(range(len(rows)))
        found.append([rows[number] for number in sorted(rows)])
    return found


EXPECTED = ["a", "missing_text", "empty_text", "b" * 3000, "\u6f22", "c", "d"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "type_",
    [pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string())],
)
def test_rows_are_records_and_a_batch_is_never_cut(
    tmp_path: Path, kind: str, type_: pa.DataType
) -> None:
    path = write_arrow(tmp_path / "a.arrow", TEXTS, rows_per_batch=2, kind=kind, type_=type_)
    assert read(path) == [EXPECTED]
    assert read(path, split_bytes=1) == [EXPECTED[i : i + 2] for i in range(0, 7, 2)]


@pytest.mark.parametrize("compression", ["uncompressed", "lz4", "zstd"])
def test_feather_files_are_arrow_files(tmp_path: Path, compression: str) -> None:
    table = pa.table({"other": [[1], [2], [3]], "text": ["x", "y", "z"]})
    feather.write_feather(table, tmp_path / "a.feather", compression=compression, chunksize=2)
    assert read(tmp_path / "a.feather", split_bytes=1) == [["x", "y"], ["z"]]


def test_dictionaries_that_change_in_a_stream_reach_every_split(tmp_path: Path) -> None:
    sink = io.BytesIO()
    column = pa.dictionary(pa.int8(), pa.string())
    schema = pa.schema({"text": column, "label": column})
    with ipc.new_stream(sink, schema) as stream:
        for first, second in (("a", "b"), ("c", "d"), ("c", "e")):
            texts = pa.array([first, second]).dictionary_encode().cast(column)
            stream.write_batch(pa.record_batch([texts, texts], schema=schema))
    path = write_bytes(tmp_path / "a.arrow", sink.getvalue())
    assert read(path, split_bytes=1) == [["a", "b"], ["c", "d"], ["c", "e"]]


@given(
    texts=st.lists(st.text("ab\u6f22", min_size=1, max_size=30), max_size=20),
    rows=st.integers(1, 6),
    split_bytes=st.integers(1, 3000),
    kind=st.sampled_from(KINDS),
)
@settings(max_examples=60, deadline=None)
def test_every_split_size_gives_the_rows_of_the_whole_file(
    tmp_path_factory: pytest.TempPathFactory,
    texts: list[str],
    rows: int,
    split_bytes: int,
    kind: str,
) -> None:
    path = tmp_path_factory.getbasetemp() / "cut.arrow"
    write_arrow(path, texts, rows_per_batch=rows, kind=kind)
    found = read(path, split_bytes=split_bytes)
    assert [text for split in found for text in split] == texts


@pytest.mark.parametrize("kind", KINDS)
def test_messages_are_found_without_reading_their_bodies(tmp_path: Path, kind: str) -> None:
    path = write_arrow(tmp_path / "a.arrow", ["x" * 100_000] * 40, rows_per_batch=4, kind=kind)

    class Counting(io.FileIO):
        count = 0

        def size(self) -> int:
            return path.stat().st_size

        def read(self, size: int | None = -1) -> bytes:
            data = super().read(size)
            Counting.count += len(data)
            return data

    found = list(messages(Counting(path)))
    assert [message.kind for message in found] == ["schema", *["batch"] * 10]
    assert path.stat().st_size > 4_000_000
    assert Counting.count < 100_000


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("kept", [0.5, 0.9])
def test_a_file_that_ends_early_is_named(tmp_path: Path, kind: str, kept: float) -> None:
    path = write_arrow(tmp_path / "a.arrow", ["x" * 500] * 20, rows_per_batch=10, kind=kind)
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * kept)])
    with pytest.raises(
        SourceError, match=r"a\.arrow cannot be read as Arrow: ends (inside|before)"
    ):
        read(path)


def test_what_is_not_arrow_is_refused_and_an_empty_file_has_no_record(tmp_path: Path) -> None:
    for content in (b"no arrow, but long enough", b"FEA1" + bytes(40), b"xyz"):
        with pytest.raises(SourceError, match="cannot be read as Arrow: "):
            read(write_bytes(tmp_path / "a.arrow", content))
    assert read(write_bytes(tmp_path / "b.arrow", b"")) == []
    with pytest.raises(ArrowError, match="does not start with an Arrow schema"):
        next(iter([_schema_of(tmp_path / "c.arrow")]))
    path = write_arrow(tmp_path / "d.arrow", ["x"])
    with pytest.raises(SourceError, match="set text_column to one of: id, text"):
        read(path, text_column="body")


def _schema_of(path: Path) -> pa.Schema:
    from pipeline.files.storage import open_random
    from pipeline.reading.arrow_ipc import read_schema

    with open_random(str(write_bytes(path, bytes(8)))) as file:
        return read_schema(file)


class TestSaved:
    """A directory as `Dataset.save_to_disk` writes it."""

    @staticmethod
    def save(directory: Path, shards: int = 2) -> Path:
        names = [f"data-{number:05d}-of-{shards:05d}.arrow" for number in range(shards)]
        for number, name in enumerate(names):
            write_arrow(directory / name, [f"{number} a", f"{number} b"])
        state = {"_data_files": [{"filename": name} for name in names], "_fingerprint": "0"}
        write_bytes(directory / "state.json", json.dumps(state).encode())
        write_bytes(directory / "dataset_info.json", b'{"features": {}}')
        return directory

    def test_its_json_files_are_no_documents(self, tmp_path: Path) -> None:
        self.save(tmp_path / "saved")
        write_arrow(tmp_path / "saved/data-left-over.arrow", ["not named by state.json"])
        assert read(tmp_path / "saved") == [["0 a", "0 b"], ["1 a", "1 b"]]

    def test_it_may_lie_deeper_and_others_keep_their_json(self, tmp_path: Path) -> None:
        self.save(tmp_path / "all/one")
        self.save(tmp_path / "all/two", shards=1)
        assert len(read(tmp_path / "all")) == 3
        write_bytes(tmp_path / "plain/state.json", b'{"text": "a record"}\n')
        assert read(tmp_path / "plain") == [["a record"]]

    def test_several_splits_and_missing_files_are_refused(self, tmp_path: Path) -> None:
        self.save(tmp_path / "both/train")
        self.save(tmp_path / "both/test")
        write_bytes(tmp_path / "both/dataset_dict.json", b'{"splits": ["train", "test"]}')
        with pytest.raises(SourceError, match="holds the splits train, test of a data set"):
            read(tmp_path / "both")
        assert len(read(tmp_path / "both/train")) == 2
        (tmp_path / "both/train/data-00001-of-00002.arrow").unlink()
        with pytest.raises(SourceError, match=r"state\.json names data-00001.*is not there"):
            read(tmp_path / "both/train")
