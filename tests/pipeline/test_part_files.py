"""How rows came together in a table leaves no trace."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.stores.part_files import TableWriter, table_at


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
