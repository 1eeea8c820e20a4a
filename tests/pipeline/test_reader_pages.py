"""Values taken from Parquet pages, spans and labelled pieces: each beside something slower."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.shard import parts
from pipeline.shard.pages import flat_values
from pipeline.shard.reader import open_shards
from pipeline.shard.spans import boundaries, counting, spans, take_spans
from tests.fixture_set import make_set

PLAIN: dict[str, Any] = {
    "compression": "zstd",
    "use_dictionary": False,
    "write_statistics": False,
}
LISTS = [[1, 2, 70_000], [5], [7] * 4000, [2**32 - 1, 0]]


def flat_of(path: Path, lists: pa.Array, **options: Any) -> list[list[int] | None]:
    """For each row group the values that `flat_values` gives of the second column."""
    table = pa.table({"row": pa.array(range(len(lists))), "tokens": lists})
    pq.write_table(table, path, **PLAIN | options)
    metadata = pq.read_metadata(path)
    found = []
    for group in range(metadata.num_row_groups):
        column = metadata.row_group(group).column(1)
        base = column.data_page_offset - 3  # any place before the pages
        data = pa.py_buffer(path.read_bytes()[base:])
        values = flat_values(data, base, column)
        found.append(None if values is None else values.view(np.uint32).tolist())
    return found


@pytest.mark.parametrize("type_", [pa.uint32(), pa.int32()])
def test_plain_pages_give_the_values_as_they_are(tmp_path: Path, type_: pa.DataType):
    lists = [[value % 2**31 for value in row] for row in LISTS]
    array = pa.array(lists, pa.list_(type_))
    found = flat_of(tmp_path / "a", array, row_group_size=2)
    assert found == [lists[0] + lists[1], lists[2] + lists[3]]


def test_ids_use_all_32_bits(tmp_path: Path):
    found = flat_of(tmp_path / "a", pa.array(LISTS, pa.list_(pa.uint32())))
    assert found == [[value for row in LISTS for value in row]]


def test_a_column_of_many_pages_is_put_together(tmp_path: Path):
    lists = [list(range(start, start + 5000)) for start in range(0, 100_000, 5000)]
    array = pa.array(lists, pa.list_(pa.uint32()))
    for page in (1000, 1 << 20):
        found = flat_of(tmp_path / "a", array, data_page_size=page, write_batch_size=100)
        assert found == [list(range(100_000))]


@pytest.mark.parametrize(
    ("lists", "options"),
    [
        ([[1, 2], [], [3]], {}),
        ([[1, 2], None, [3]], {}),
        ([[1, None], [3]], {}),
        ([[1, 2], [3]], {"use_dictionary": True}),
        ([[1, 2], [3]], {"data_page_version": "2.0"}),
        ([[1, 2], [3]], {"column_encoding": {"tokens.list.element": "DELTA_BINARY_PACKED"}}),
        ([[1, 2], [3]], {"compression": "none"}),
        ([[1, 2], [3]], {"compression": "lz4"}),
    ],
    ids=[
        "empty list",
        "null list",
        "null",
        "dictionary",
        "second version",
        "delta",
        "as is",
        "lz4",
    ],
)
def test_other_pages_are_left_to_the_library(
    tmp_path: Path, lists: list[Any], options: dict[str, Any]
):
    assert flat_of(tmp_path / "a", pa.array(lists, pa.list_(pa.uint32())), **options) == [None]


@pytest.mark.parametrize("taken", [True, False])
def test_rows_are_the_same_whether_pages_are_taken_or_decoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, taken: bool
):
    data = make_set()
    directory = data.write(tmp_path)
    answers = []

    def answer(*arguments: Any) -> np.ndarray | None:
        answers.append(flat_values(*arguments) if taken else None)
        return answers[-1]

    monkeypatch.setattr(parts, "flat_values", answer)
    reader = open_shards(directory)
    rows = [row for shard in data.shards for row in shard["tokens"]]
    for place, row in enumerate(rows):
        tokens = reader.micro_batch(*divmod(place, 2)).tokens
        assert tokens.tolist() == row
        assert tokens.dtype == np.uint16
        assert not tokens.flags.writeable
    assert len(answers) == 5  # row groups of four rows: three and two, once for all their rows
    assert all((values is not None) is taken for values in answers)


@given(st.lists(st.tuples(st.integers(0, 500), st.integers(0, 400)), max_size=6))
def test_spans_are_ranges_end_to_end(places: list[tuple[int, int]]):
    starts = np.array([start for start, _ in places], np.int64)
    lengths = np.array([length for _, length in places], np.int64)
    expected = [n for start, length in places for n in range(start, start + length)]
    assert spans(starts, lengths).tolist() == expected
    values = np.arange(1000, dtype=np.uint16)[::-1]
    out = np.empty(len(expected), np.int64)
    take_spans(values, starts, lengths, out)
    assert out.tolist() == [999 - n for n in expected]
    assert boundaries(lengths).tolist() == [0, *np.cumsum(lengths).tolist()]


@settings(max_examples=20)
@given(st.integers(0, 300_000))
def test_counting_numbers_are_shared_and_cannot_be_changed(count: int):
    numbers = counting(count)
    assert len(numbers) == count
    assert not count or (numbers[0], numbers[-1]) == (0, count - 1)
    assert not numbers.flags.writeable
