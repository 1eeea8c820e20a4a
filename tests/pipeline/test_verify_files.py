"""Digests and layouts: what verify says of damage, and of lies that are signed."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from pipeline.shard import schema
from tests import fixture_files
from tests.changes import CP, PARTS, PLAN, SHARD, broken, offence
from tests.fixture_files import byte_ranges, write_indexes, write_table
from tests.fixture_set import SetData, make_set


# --- Law: every file is the one its digest names.
def all_files() -> list[str]:
    stores = [source["store"] for source in make_set().manifest["sources"]]
    names = ("source.json", "inputs.parquet", "parts.parquet", "lengths.u32", "rejects.parquet")
    endings = ("tokens", "index.parquet", "blocks.parquet")
    parts = [f"{stores[i]}/parts/0000{part}.{end}" for i, part in ((0, 0), (0, 1), (1, 0))
             for end in endings]  # fmt: skip
    tables = ("files.parquet", "row_groups.parquet", "steps.parquet", "tail.parquet")
    return [
        "manifest.json", *tables, *PARTS, *(f"{s}/{name}" for s in stores for name in names), *parts
    ]  # fmt: skip


@contextmanager
def flipped(path: Path, offset: int) -> Iterator[None]:
    """One bit of a file is another one, for a while."""
    intact = path.read_bytes()
    damaged = bytearray(intact)
    damaged[offset] ^= 16
    path.write_bytes(damaged)
    try:
        yield
    finally:
        path.write_bytes(intact)


def test_the_list_of_files_is_complete(directory: Path):
    found = {path.relative_to(directory).as_posix() for path in directory.rglob("*.*")}
    assert {name for name in found if (directory / name).is_file()} == {
        *all_files(),
        "manifest.sha256",
    }


@pytest.mark.parametrize("name", all_files())
def test_a_flipped_bit_in_any_file_is_found_and_the_file_named(name: str, directory: Path):
    path = directory / name
    with flipped(path, path.stat().st_size // 2):
        assert offence(directory).path == str(path)


@pytest.mark.parametrize("name", all_files())
def test_a_missing_file_is_named(name: str, directory: Path):
    path = directory / name
    path.rename(path.with_suffix(".away"))
    try:
        assert offence(directory).path == str(path)
    finally:
        path.with_suffix(".away").rename(path)


def test_a_flipped_bit_in_the_manifests_digest_is_found(directory: Path):
    with flipped(directory / "manifest.sha256", 3):
        assert "manifest.sha256 says" in str(offence(directory))


@pytest.mark.parametrize("name", PARTS)
def test_a_flipped_bit_in_a_part_is_placed_in_its_row_group(name: str, directory: Path):
    path = directory / name
    groups = []
    for group, _, offset, length in byte_ranges(path):
        for place in (offset, offset + length - 1):
            with flipped(path, place):
                error = offence(directory)
            assert (error.path, error.row_group) == (str(path), group)
            assert f"{name}, {'footer' if group < 0 else f'row group {group}'}: " in str(error)
        groups.append(group)
    assert groups[-1] == -1
    assert len(groups) > 2


def test_a_flipped_bit_before_the_first_row_group_is_found(directory: Path):
    with flipped(directory / PLAN, 3):
        error = offence(directory)
    assert (error.path, error.row_group) == (str(directory / PLAN), None)


def test_a_flipped_bit_in_tokens_is_placed_in_its_block(directory: Path):
    path = directory / make_set().manifest["sources"][1]["store"] / "parts/00000.tokens"
    assert path.stat().st_size > 65_536
    with flipped(path, 65_536):
        assert "block 1 (bytes from 65536) is damaged" in str(offence(directory))


def test_a_part_that_nobody_lists_is_found(tmp_path: Path):
    make_set().write(tmp_path)
    (tmp_path / "plan/00002.parquet").write_bytes((tmp_path / PLAN).read_bytes())
    assert "plan/00002.parquet: is not listed" in str(offence(tmp_path))


def test_a_listed_part_of_which_the_manifest_does_not_tell_is_found(tmp_path: Path):
    error = broken(lambda data: data.manifest.update(cp={}), tmp_path)
    assert "lists cp=2/00000.parquet, of which manifest.json does not tell" in str(error)


def test_a_workload_model_that_cannot_be_computed_again_is_refused(tmp_path: Path):
    error = broken(lambda data: data.manifest["workload"].update(model="moe"), tmp_path)
    assert "workload.model is 'moe'" in str(error)


def test_a_truncated_part_is_found(tmp_path: Path):
    path = make_set().write(tmp_path) / SHARD
    path.write_bytes(path.read_bytes()[:-9])
    assert f"{SHARD}: has" in str(offence(tmp_path))


@pytest.mark.parametrize(
    ("table", "column", "value", "message"),
    [
        ("row_groups", "xxh3_128", "0" * 32, "row group 0: row_groups.parquet has another digest"),
        ("row_groups", "offset", 5, "places its row groups elsewhere"),
        ("row_groups", "first_step", 1, "has first step 1, it is 0"),
        ("row_groups", "path", CP, "in the order of files.parquet"),
        ("files", "content_sha256", "0" * 64, "content digest is not"),
        ("files", "bytes", 5, "files.parquet says 5"),
        ("files", "sha256", "0" * 64, "its bytes are not those of SHA-256 0000"),
        ("files", "path", "plan/x.parquet", "does not list plan/00000.parquet"),
        ("files", "path", SHARD, "lists a file twice"),
    ],
)
def test_indexes_that_lie_of_intact_files_are_found(
    table: str, column: str, value: Any, message: str, tmp_path: Path
):
    data = make_set()
    data.write(tmp_path)
    layout = {"files": schema.FILES, "row_groups": schema.ROW_GROUPS}[table]
    columns = pq.read_table(tmp_path / f"{table}.parquet").to_pydict()
    columns[column][0] = value
    write_table(tmp_path / f"{table}.parquet", columns, layout)
    data.write_manifest(tmp_path)
    assert message in str(offence(tmp_path))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"row_group_size": 5}, "row groups have"),
        ({"row_group_size": 4, "compression": "snappy"}, "SNAPPY"),
        ({"row_group_size": 4, "compression": "none"}, "UNCOMPRESSED"),
    ],
)
def test_a_shard_of_another_layout_is_found(options: dict[str, Any], message: str, tmp_path: Path):
    data = make_set()
    data.write(tmp_path)
    table = pq.read_table(tmp_path / SHARD)
    layout = {"compression": "zstd", "use_dictionary": False} | options
    pq.write_table(table, tmp_path / SHARD, **layout)
    write_indexes(tmp_path, PARTS)
    data.write_manifest(tmp_path)
    error = offence(tmp_path)
    assert SHARD in str(error)
    assert message in str(error)


@pytest.mark.parametrize("path", [PLAN, SHARD, CP])
def test_a_column_of_another_type_is_found(path: str, tmp_path: Path):
    data = make_set()
    data.write(tmp_path)
    table = pq.read_table(tmp_path / path)
    wider = table.set_column(1, "slot", table.column("slot").cast("int64"))
    pq.write_table(wider, tmp_path / path, row_group_size=4, use_dictionary=False)
    write_indexes(tmp_path, PARTS)
    data.write_manifest(tmp_path)
    error = offence(tmp_path)
    assert path in str(error)
    assert "column 'slot' is int64, must be int32" in str(error)


def test_a_null_in_a_part_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(fixture_files, "content_digest", lambda path: "0" * 64)
    data = make_set()
    data.plan[0]["source"][0] = None
    assert f"{PLAN}: has no content digest" in str(offence(data.write(tmp_path)))


def test_a_null_in_the_tail_is_found(tmp_path: Path):
    def change(data: SetData) -> None:
        data.tail["epoch"][0] = None

    assert "tail.parquet: holds a null" in str(broken(change, tmp_path))
