"""Records that repeat an id: found by a sort outside memory, as a dictionary finds them."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.reading.listing import list_inputs
from pipeline.reading.splits import plan_splits
from pipeline.settings.documents import SourceConfig
from pipeline.shard.token_store import TokenStore
from pipeline.stores import duplicates
from pipeline.stores.duplicates import duplicates_of, find_duplicates, num_buckets, write_ids
from pipeline.stores.tokenize import tokenize_split
from tests.corpora import (
    build_store,
    source_of,
    tiny_identity,
    write_arrow,
    write_bytes,
    write_parquet,
    write_tree,
)

Place = tuple[str, int]


def write_rows(path: Path, rows: list[dict[str, Any]]) -> Path:
    return write_bytes(path, "".join(json.dumps(row) + "\n" for row in rows).encode())


def with_ids(*paths: Path, policy: str = "count") -> SourceConfig:
    return source_of(*paths, id_column="id", duplicate_ids=policy)


def listed(directory: Path, name: str) -> list[tuple[str, int, str]]:
    path = directory / f"{name}.parquet"
    rows = pq.read_table(path).to_pylist() if path.exists() else []
    return [(row["path"], row["record"], row["reason"]) for row in rows]


def documents(directory: Path) -> list[Place]:
    store = TokenStore(directory)
    return [store.origin_of(doc_id) for doc_id in range(store.documents)]


ROWS = [
    {"id": "a", "text": "1"},
    {"id": 1, "text": "2"},
    {"id": "a", "text": "3"},
    {"id": "1", "text": "4"},  # another id than the number
    {"id": "b", "text": ""},  # refused, so the next one is the first with this id
    {"id": "b", "text": "6"},
    {"text": "7"},
    {"id": None, "text": "8"},
    {"id": True, "text": "9"},  # no id
    {"id": 1.0, "text": "10"},  # no id
    {"id": 1, "text": "11"},
]
REPEATS = [("a.jsonl", 2), ("a.jsonl", 10), ("b.jsonl", 0), ("b.jsonl", 1)]
MORE = [{"id": "b", "text": "x"}, {"id": "a", "text": "y"}, {"id": "c", "text": "z"}]


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    write_rows(tmp_path / "in/a.jsonl", ROWS)
    write_rows(tmp_path / "in/b.jsonl", MORE)
    return tmp_path / "in"


@pytest.mark.parametrize("split_bytes", [20, 1 << 20])
def test_counting_keeps_every_record_and_lists_those_that_repeat(
    corpus: Path, tmp_path: Path, split_bytes: int
) -> None:
    directory = build_store(with_ids(corpus), tmp_path, split_bytes=split_bytes)
    store = TokenStore(directory)
    assert (store.documents, store.identity["notes"]) == (13, {"duplicate_id": 4})
    assert listed(directory, "notes") == [(*place, "duplicate_id") for place in REPEATS]
    assert listed(directory, "rejects") == [("a.jsonl", 4, "empty_text")]
    assert not (directory / duplicates.FOLDER).exists()


@pytest.mark.parametrize("split_bytes", [20, 1 << 20])
def test_rejecting_keeps_the_first_of_an_id_in_document_order(
    corpus: Path, tmp_path: Path, split_bytes: int
) -> None:
    directory = build_store(with_ids(corpus, policy="reject"), tmp_path, split_bytes=split_bytes)
    kept = documents(directory)
    assert kept == [*(("a.jsonl", number) for number in (0, 1, 3, 5, 6, 7, 8, 9)), ("b.jsonl", 2)]
    expected = {*((*place, "duplicate_id") for place in REPEATS), ("a.jsonl", 4, "empty_text")}
    assert set(listed(directory, "rejects")) == expected
    assert TokenStore(directory).identity["rejected"] == {"duplicate_id": 4, "empty_text": 1}
    details = pq.read_table(directory / "rejects.parquet")["detail"].to_pylist()
    assert 'id "a"' in details


def test_ids_of_tables_and_lines_are_compared_and_text_files_have_none(tmp_path: Path) -> None:
    lines = write_rows(tmp_path / "a.jsonl", [{"id": 1, "text": "x"}])
    rows = write_parquet(tmp_path / "b.parquet", ["p", "q", "r"])  # ids 0, 1, 2
    arrow = write_arrow(tmp_path / "c.arrow", ["s", "t", "u", "v"])  # ids 0 to 3
    write_tree(tmp_path / "tree", {"a.txt": "x", "b.txt": "x"})
    source = with_ids(lines, rows, arrow, tmp_path / "tree", policy="reject")
    assert documents(build_store(source, tmp_path / "stores")) == [
        ("a.jsonl", 0),
        ("b.parquet", 0),
        ("b.parquet", 2),
        ("c.arrow", 3),
        ("a.txt", 0),
        ("b.txt", 0),
    ]


@given(
    ids=st.lists(st.one_of(st.integers(0, 5), st.text("ab", max_size=2), st.none()), max_size=40),
    split_bytes=st.integers(10, 400),
    buckets=st.integers(1, 5),
    chunk=st.integers(1, 50),
)
@settings(max_examples=30, deadline=None)
def test_splits_buckets_chunks_and_the_order_of_tasks_do_not_matter(
    tmp_path_factory: pytest.TempPathFactory,
    ids: list[object],
    split_bytes: int,
    buckets: int,
    chunk: int,
) -> None:
    root = tmp_path_factory.mktemp("ids")
    path = write_rows(root / "a.jsonl", [{"id": id_, "text": "x"} for id_ in ids])
    source = with_ids(path)
    splits = list(plan_splits(source, list_inputs(source), split_bytes=split_bytes))
    draw = random.Random(split_bytes)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(duplicates, "_CHUNK_IDS", chunk)
        receipts = [
            write_ids(split, source, root, buckets) for split in draw.sample(splits, len(splits))
        ]
        found = [
            find_duplicates(root, bucket, len(splits))
            for bucket in draw.sample(range(buckets), buckets)
        ]
    seen: set[str] = set()
    expected = []
    for number, id_ in enumerate(ids):
        key = json.dumps(id_)
        if id_ is not None and key in seen:
            expected.append(number)
        seen.add(key)
    records = {receipt["split"]: receipt["records"] for receipt in receipts}
    first = np.cumsum([0, *(records[split.number] for split in splits)])
    numbers = [
        int(first[split.number]) + int(record)
        for split in splits
        for record in duplicates_of(root, split.number)
    ]
    assert numbers == expected
    assert sum(receipt["duplicates"] for receipt in found) == len(expected)
    assert sum(receipt["ids"] for receipt in receipts) == sum(id_ is not None for id_ in ids)


def test_tokenizing_without_the_passes_before_says_so(corpus: Path, tmp_path: Path) -> None:
    source = with_ids(corpus)
    split, *_ = plan_splits(source, list_inputs(source), split_bytes=1 << 20)
    with pytest.raises(FileNotFoundError, match="find duplicates first"):
        tokenize_split(split, source, tiny_identity(), tmp_path / "store")


def test_buckets_grow_with_the_source_to_a_bound() -> None:
    sizes = (0, 1 << 20, 1 << 30, 1 << 35, 1 << 60)
    assert [num_buckets(size) for size in sizes] == [1, 1, 2, 33, 1024]


def test_counting_and_stopping_make_one_store_and_rejecting_another(
    corpus: Path, tmp_path: Path
) -> None:
    names = {
        policy: build_store(with_ids(corpus, policy=policy), tmp_path / policy).name
        for policy in ("count", "stop", "reject")
    }
    assert names["count"] == names["stop"] != names["reject"]
    assert build_store(source_of(corpus), tmp_path / "none").name not in names.values()
