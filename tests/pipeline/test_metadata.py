"""Columns that are kept: from a record, through the store, back by document."""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.reading.records import read as read_module
from pipeline.reading.records.fields import metadata_of
from pipeline.shard import schema
from pipeline.shard.token_store import StoreError, TokenStore
from tests.corpora import build_store, source_of, write_bytes, write_jsonl, write_tree

KEPT = ["url", "id"]
ROWS: list[dict[str, Any]] = [
    {"id": 1, "text": "a", "url": "https://a", "other": 0},
    {"id": "two", "text": "b"},
    {"id": 3, "text": ""},
    {"id": {"nested": [1.5, None]}, "text": "c", "url": "\u6f22"},
    {"text": "d", "id": None},
]
EXPECTED = [
    {"id": 1, "url": "https://a"},
    {"id": "two", "url": None},
    {"id": {"nested": [1.5, None]}, "url": "\u6f22"},
    {"id": None, "url": None},
]


def all_metadata(directory: Path) -> list[dict[str, Any] | None]:
    store = TokenStore(directory)
    store.check_tables()
    return [store.metadata_of(doc_id) for doc_id in range(store.documents)]


@pytest.mark.parametrize("split_bytes", [32, 1 << 20])
def test_a_document_has_the_columns_of_its_own_record(tmp_path: Path, split_bytes: int) -> None:
    lines = [json.dumps(row).encode() for row in ROWS]
    path = write_bytes(tmp_path / "a.jsonl", b"\n".join(lines))
    source = source_of(path, keep_columns=KEPT)
    assert all_metadata(build_store(source, tmp_path, split_bytes=split_bytes)) == EXPECTED


@pytest.mark.parametrize("kind", ["parquet", "file", "stream"])
def test_columns_of_tables_become_json(tmp_path: Path, kind: str) -> None:
    table = pa.table(
        {
            "when": [datetime.date(2026, 11, 30), None, datetime.date(1970, 1, 1)],
            "text": ["a", "", "b"],
            "score": [float("nan"), 1.0, 0.5],
            "raw": [b"\x00\xff", b"", None],
            "url": pa.array([b"ok", b"x", b"\xff"], pa.binary()).view(pa.string()),
        }
    )
    path = tmp_path / ("a.parquet" if kind == "parquet" else "a.arrow")
    if kind == "parquet":
        pq.write_table(table, path)
    else:
        with {"file": pa.ipc.new_file, "stream": pa.ipc.new_stream}[kind](
            path, table.schema
        ) as writer:
            writer.write_table(table)
    source = source_of(path, keep_columns=["when", "score", "raw", "url", "absent"])
    assert all_metadata(build_store(source, tmp_path)) == [
        {"absent": None, "raw": "00ff", "score": None, "url": "ok", "when": "2026-11-30"},
        {"absent": None, "raw": None, "score": 0.5, "url": None, "when": "1970-01-01"},
    ]


def test_keys_are_sorted_and_the_text_may_be_kept() -> None:
    kept = metadata_of({"text": "\ud800", "b": True, "a": [2, (3,)]}, ["b", "a", "text"])
    assert kept == '{"a":[2,[3]],"b":true,"text":"\\ud800"}'
    assert metadata_of({"a": 1}, []) is None


def test_a_value_without_bottom_does_not_stop_the_reading(tmp_path: Path) -> None:
    deep = "[" * 190 + "]" * 190
    lines = f'{{"text": "a", "id": {deep}}}\n{{"text": "b", "id": 2}}\n'
    path = write_bytes(tmp_path / "a.jsonl", lines.encode())
    directory = build_store(source_of(path, keep_columns=["id"], id_column="id"), tmp_path)
    first, second = all_metadata(directory)
    assert second == {"id": 2}
    assert json.dumps(first).count("[") == 100


def test_without_kept_columns_the_index_has_no_such_column(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", ["x"])
    directory = build_store(source_of(path), tmp_path)
    assert all_metadata(directory) == [None]
    assert pq.read_schema(directory / "parts/00000.index.parquet").names == (
        schema.PART_INDEX.names
    )
    assert "keep_columns" not in TokenStore(directory).identity
    assert not (directory / "notes.parquet").exists()
    assert build_store(source_of(path, keep_columns=["id"]), tmp_path).name != directory.name


def test_text_files_have_none(tmp_path: Path) -> None:
    write_tree(tmp_path / "tree", {"a.txt": "x"})
    assert all_metadata(
        build_store(source_of(tmp_path / "tree", keep_columns=["id"]), tmp_path)
    ) == [None]


def test_metadata_over_the_limit_is_left_out_and_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read_module, "MAX_METADATA_BYTES", 20)
    rows = [{"text": "a", "id": "x"}, {"text": "b", "id": "y" * 30}, {"text": "c", "id": "z"}]
    path = write_bytes(tmp_path / "a.jsonl", "\n".join(map(json.dumps, rows)).encode())
    directory = build_store(source_of(path, keep_columns=["id"]), tmp_path)
    assert all_metadata(directory) == [{"id": "x"}, None, {"id": "z"}]
    assert TokenStore(directory).identity["notes"] == {"metadata_too_long": 1}
    assert pq.read_table(directory / "notes.parquet").to_pylist() == [
        {
            "path": "a.jsonl",
            "record": 1,
            "reason": "metadata_too_long",
            "detail": "39 bytes, at most 20 are kept",
        }
    ]
    (directory / "notes.parquet").write_bytes(b"other")
    with pytest.raises(StoreError, match=r"notes\.parquet is not the file"):
        TokenStore(directory).check_tables()
