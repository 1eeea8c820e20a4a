"""Rows of Parquet files as records, whatever the row groups and splits."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.reading.listing import SourceError
from tests.corpora import source_of, write_parquet
from tests.pipeline.found_records import read


class TestParquet:
    TEXTS = ("a", None, "", "b" * 5000, "c", "\u6f22", "d")

    @pytest.mark.parametrize(
        "type_",
        [
            pa.string(),
            pa.large_string(),
            pa.string_view(),
            pa.dictionary(pa.int32(), pa.string()),
        ],
    )
    @pytest.mark.parametrize("split_bytes", [1, 200, 1 << 20])
    def test_rows_are_records_whatever_the_groups_and_splits(
        self, tmp_path: Path, type_: pa.DataType, split_bytes: int
    ) -> None:
        path = write_parquet(tmp_path / "a.parquet", self.TEXTS, rows_per_group=2, type_=type_)
        accepted, refused = read(source_of(path), split_bytes=split_bytes)
        assert accepted == [(0, i, self.TEXTS[i]) for i in (0, 3, 4, 5, 6)]
        assert refused == [(0, 1, "missing_text"), (0, 2, "empty_text")]

    def test_a_string_that_is_not_utf8_is_refused_alone(self, tmp_path: Path) -> None:
        column = pa.array([b"a", b"\xff", None, b"b"]).view(pa.string())
        pq.write_table(pa.table({"text": column}), tmp_path / "a.parquet")
        accepted, refused = read(source_of(tmp_path / "a.parquet"))
        assert accepted == [(0, 0, "a"), (0, 3, "b")]
        assert refused == [(0, 1, "bad_utf8"), (0, 2, "missing_text")]

    def test_a_damaged_file_stops_the_reading_and_is_named(self, tmp_path: Path) -> None:
        path = write_parquet(tmp_path / "a.parquet", [f"{i}" * 50 for i in range(200)])
        content = bytearray(path.read_bytes())
        content[8:2000] = bytes(1992)
        path.write_bytes(content)
        with pytest.raises(SourceError, match=r"a\.parquet: row groups 0 to 12 cannot be read"):
            read(source_of(path))
