"""Digests: each equals a slow twin that follows docs/FORMAT.md word for word."""

import hashlib
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.shard import digests
from pipeline.shard.digests import (
    content_sha256,
    row_group_ranges,
    sha256_bytes,
    sha256_file,
    xxh3_128,
    xxh3_128_file,
)
from tests.fixture_files import byte_ranges, content_digest

TABLE = pa.table(
    {
        "a": pa.array([[1, 2], [3], []], pa.list_(pa.int32())),
        "b": pa.array([7, 8, 9], pa.int64()),
        "c": ["x", "", "\u00e9y"],
    }
)


def test_content_digest_is_offsets_then_values_column_by_column():
    expected = hashlib.sha256(
        np.array([0, 2, 3, 3], "<i8").tobytes()
        + np.array([1, 2, 3], "<i4").tobytes()
        + np.array([7, 8, 9], "<i8").tobytes()
        + np.array([0, 1, 1, 4], "<i8").tobytes()
        + "x\u00e9y".encode()
    )
    assert content_sha256(TABLE) == expected.hexdigest()


@pytest.mark.parametrize("rows", [1, 2, 3])
@pytest.mark.parametrize("compression", ["zstd", "none"])
def test_content_digest_does_not_depend_on_row_groups_or_compression(
    tmp_path: Path, rows: int, compression: str
):
    path = tmp_path / "table.parquet"
    pq.write_table(TABLE, path, row_group_size=rows, compression=compression)
    assert content_sha256(path) == content_sha256(TABLE)
    with pq.ParquetFile(path) as file:
        assert content_sha256(file) == content_sha256(TABLE)


def test_content_digest_of_a_column_too_large_to_hold_is_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    path = tmp_path / "table.parquet"
    pq.write_table(TABLE, path, row_group_size=1)
    monkeypatch.setattr(digests, "_WHOLE_BYTES", 0)
    assert content_sha256(path) == content_sha256(TABLE)


def test_content_digest_of_a_table_in_slices_is_that_of_the_whole():
    slices = pa.concat_tables([TABLE.slice(0, 1), TABLE.slice(1, 1), TABLE.slice(2)])
    assert slices.column("a").num_chunks == 3
    assert content_sha256(slices) == content_sha256(TABLE)


@settings(max_examples=30, deadline=None)
@given(
    lists=st.lists(st.lists(st.integers(0, 65_535), max_size=5), min_size=1, max_size=8),
    text=st.text(max_size=4),
    rows=st.integers(1, 4),
)
def test_content_digest_equals_its_slow_twin(
    tmp_path_factory: pytest.TempPathFactory, lists: list[list[int]], text: str, rows: int
):
    path = tmp_path_factory.mktemp("digests") / "table.parquet"
    table = pa.table(
        {
            "tokens": pa.array(lists, pa.list_(pa.uint16())),
            "slot": pa.array(range(len(lists)), pa.int32()),
            "strategy": pa.array([text] * len(lists), pa.string()),
        }
    )
    pq.write_table(table, path, row_group_size=rows, use_dictionary=False)
    assert content_sha256(path) == content_digest(path)


def test_content_digest_sees_where_a_list_ends():
    moved = [pa.array(lists, pa.list_(pa.int32())) for lists in ([[1], [2, 3]], [[1, 2], [3]])]
    assert content_sha256(pa.table({"a": moved[0]})) != content_sha256(pa.table({"a": moved[1]}))


@pytest.mark.parametrize(
    "array",
    [
        pa.array([1, None]),
        pa.array([[1, None]], pa.list_(pa.int32())),
        pa.array([{"x": 1}]),
        pa.array([[["x"]]]),
    ],
)
def test_content_digest_is_refused_where_the_format_defines_none(array: pa.Array):
    with pytest.raises(ValueError, match=r"null|no content digest"):
        content_sha256(pa.table({"a": array}))


def test_row_group_ranges_cover_the_file_but_its_first_four_bytes(tmp_path: Path):
    path = tmp_path / "table.parquet"
    pq.write_table(TABLE, path, row_group_size=2)  # with dictionaries, unlike the format's files
    ranges = row_group_ranges(path)
    assert [entry.row_group for entry in ranges] == [0, 1, -1]
    end = 4
    for entry in ranges:
        assert entry.offset == end
        end += entry.length
    assert end == path.stat().st_size
    pq.write_table(TABLE, path, row_group_size=2, use_dictionary=False)
    twin = [(group, offset, length) for group, _, offset, length in byte_ranges(path)]
    assert row_group_ranges(path) == twin


def test_file_and_byte_digests_are_the_standard_ones(tmp_path: Path):
    data = bytes(range(256)) * 9_000
    path = tmp_path / "file"
    path.write_bytes(data)
    assert sha256_file(path) == sha256_bytes(data) == hashlib.sha256(data).hexdigest()
    assert xxh3_128_file(path) == xxh3_128(data) == xxhash.xxh3_128(data).hexdigest()
    assert xxh3_128(b"") == "99aa06d3014798d86001c324468d497f"  # the algorithm's published value
