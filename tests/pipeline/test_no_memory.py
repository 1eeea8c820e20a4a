"""Want of memory is not a broken file, though Arrow's error is one of its exceptions."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.reading import splits as splits_module
from pipeline.reading import token_columns
from pipeline.reading.listing import list_inputs
from pipeline.reading.records import columnar
from pipeline.reading.records.read import read_records
from pipeline.reading.splits import plan_splits
from pipeline.reading.token_records import read_tokens
from pipeline.shard import schema
from pipeline.shard.manifest import load_manifest
from pipeline.shard.reader import open_shards
from pipeline.verify import files as verify_files
from pipeline.verify import verify
from pipeline.verify.part import PartTable
from tests.corpora import source_of, write_arrow, write_parquet


def no_memory(*_: Any, **__: Any) -> Any:
    raise pa.ArrowMemoryError("malloc of size 9 failed")


def read_texts(path: Path) -> None:
    source = source_of(path)
    for split in plan_splits(source, list_inputs(source), split_bytes=1 << 20):
        list(read_records(split, source))


def read_ids(path: Path) -> None:
    ids = pa.table({"ids": [[1, 2], [3]]})
    if path.suffix == ".parquet":
        pq.write_table(ids, path)
    else:
        with pa.ipc.new_file(path, ids.schema) as file:
            file.write_table(ids)
    source = source_of(path, token_column="ids")
    for split in plan_splits(source, list_inputs(source), split_bytes=1 << 20):
        list(read_tokens(split, source, longest=9))


FILE = pq.ParquetFile
INPUTS: dict[str, tuple[object, str, str, Callable[[Path], None]]] = {
    "Parquet is opened": (FILE, "__init__", "a.parquet", read_texts),
    "rows of text are read": (FILE, "iter_batches", "a.parquet", read_texts),
    "rows of ids are read": (FILE, "iter_batches", "a.parquet", read_ids),
    "batches of text are found": (splits_module, "batch_spans", "a.arrow", read_texts),
    "batches of text are read": (columnar, "read_batches", "a.arrow", read_texts),
    "batches of ids are read": (token_columns, "read_batches", "a.arrow", read_ids),
}
SETS: dict[str, tuple[object, str, Callable[[Path], object]]] = {
    "a table is read": (FILE, "read", load_manifest),
    "a footer is read": (pq, "read_metadata", lambda set_: open_shards(set_).micro_batch(0, 0)),
    "a row group is read": (
        FILE, "read_row_group", lambda set_: open_shards(set_).micro_batch(0, 0).last_labels),
    "a part is read": (
        FILE, "read", lambda set_: PartTable(set_ / "plan/00000.parquet", schema.PLAN)),
    "row groups are placed": (verify_files, "row_group_ranges", verify),
    "content is digested": (verify_files, "content_sha256", verify),
}  # fmt: skip


@pytest.mark.parametrize("work", INPUTS)
def test_an_input_is_not_called_broken(
    work: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner, name, file, read = INPUTS[work]
    path = tmp_path / file
    (write_parquet if path.suffix == ".parquet" else write_arrow)(path, ["some text"])
    read(path)
    monkeypatch.setattr(owner, name, no_memory)
    with pytest.raises(MemoryError, match="malloc of size 9 failed"):
        read(path)


@pytest.mark.parametrize("work", SETS)
def test_a_set_is_not_called_damaged(
    work: str, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner, name, read = SETS[work]
    read(directory)
    monkeypatch.setattr(owner, name, no_memory)
    with pytest.raises(MemoryError, match="malloc of size 9 failed"):
        read(directory)
