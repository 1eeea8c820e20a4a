"""Damage, and lies that are signed: the reader names them, and reads what is intact."""

from pathlib import Path

import numpy as np
import pytest

from pipeline.shard.manifest import FormatError, load_manifest
from pipeline.shard.micro_batch import MicroBatch
from pipeline.shard.reader import Reader, open_plan, open_shards
from tests.fixture_contents import PARTS, SLOTS, STEPS
from tests.fixture_files import byte_ranges, write_manifest
from tests.fixture_set import SetData, make_set


def read_all(reader: Reader) -> list[MicroBatch]:
    """Every micro-batch; a CP rank's view of each is read too."""
    for step in range(STEPS):
        list(reader.micro_batches(step, dp_rank=0, dp_size=1, cp_rank=1, cp_size=2))
    return [reader.micro_batch(step, slot) for step in range(STEPS) for slot in range(SLOTS)]


@pytest.mark.parametrize("folder", ["shards", "plan", "cp=2"])
@pytest.mark.parametrize("part", [0, 1])
def test_a_flipped_bit_is_found_on_reading_and_its_row_group_named(
    tmp_path: Path, data: SetData, folder: str, part: int
):
    directory = data.write(tmp_path)
    path = directory / folder / f"0000{part}.parquet"
    intact = path.read_bytes()
    open_set = open_plan if folder == "plan" else open_shards
    groups = []
    for group, _, offset, length in byte_ranges(path):
        damaged = bytearray(intact)
        damaged[offset + length // 2] ^= 8
        path.write_bytes(damaged)
        with pytest.raises(FormatError, match=str(path)) as caught:
            read_all(open_set(directory))
        assert caught.value.row_group == group
        assert ("footer" if group == -1 else f"row group {group}") in str(caught.value)
        groups.append(group)
    assert -1 in groups
    assert len(groups) > 2


def test_intact_row_groups_of_a_damaged_file_are_still_read(tmp_path: Path, data: SetData):
    directory = data.write(tmp_path)
    path = directory / "shards/00000.parquet"
    damaged = bytearray(path.read_bytes())
    _, first_row, offset, _ = byte_ranges(path)[-2]
    damaged[offset] ^= 1
    path.write_bytes(damaged)
    reader = open_shards(directory)
    assert reader.micro_batch(0, 0).slot == 0
    with pytest.raises(FormatError):
        reader.micro_batch(*divmod(first_row, SLOTS))


def test_a_part_that_is_missing_or_cut_short_is_named(tmp_path: Path, data: SetData):
    directory = data.write(tmp_path)
    path = directory / "shards/00001.parquet"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(FormatError, match=r"shards/00001.parquet: has \d+ bytes"):
        open_shards(directory).micro_batch(STEPS - 1, 0)
    path.unlink()
    with pytest.raises(FormatError, match=r"shards/00001.parquet: cannot be read"):
        open_shards(directory).micro_batch(STEPS - 1, 0)


@pytest.mark.parametrize(
    "name", ["manifest.json", "manifest.sha256", "files.parquet", "steps.parquet"]
)
def test_damage_beside_the_parts_stops_the_opening(tmp_path: Path, data: SetData, name: str):
    directory = data.write(tmp_path)
    damaged = bytearray((directory / name).read_bytes())
    damaged[len(damaged) // 2] ^= 1
    (directory / name).write_bytes(damaged)
    with pytest.raises(FormatError, match=str(directory)):
        load_manifest(directory)
    (directory / name).unlink()
    with pytest.raises(FormatError, match=f"{name}: (cannot be read|is missing)"):
        load_manifest(directory)


def test_damaged_row_group_digests_stop_the_opening(tmp_path: Path, data: SetData):
    directory = data.write(tmp_path)
    damaged = bytearray((directory / "row_groups.parquet").read_bytes())
    damaged[len(damaged) // 2] ^= 1
    (directory / "row_groups.parquet").write_bytes(damaged)
    with pytest.raises(FormatError, match=r"row_groups.parquet: its SHA-256"):
        open_shards(directory)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 2}, "format version 2 is newer than 1.*use a newer steelyard"),
        ({"version": "1"}, "must be a positive integer"),
        ({"format": "other"}, "is not a steelyard manifest"),
        ({"dtype": "int8"}, "dtype is 'int8'"),
        ({"micro_batch_order": "zigzag"}, "'zigzag' is not known"),
        ({"cp": []}, r"cp is \[\], must be an object"),
        ({"cp": {"x": {}}}, "cp has 'x'; it must have degrees"),
        ({"cp": {"02": {}}}, "cp has '02'; it must have degrees"),
        ({"cp": {"0": {}}}, "cp has '0'; it must have degrees"),
        ({"cp": {"2": []}}, "cp.2 is not an object"),
        ({"segments": [{}]}, "a field is missing or malformed"),
        ({"digests": None}, "holds no digests"),
    ],
)
def test_a_manifest_of_another_kind_is_refused(
    tmp_path: Path, data: SetData, change: dict[str, object], message: str
):
    directory = data.write(tmp_path)
    write_manifest(directory, data.manifest | change)
    with pytest.raises(FormatError, match=message):
        load_manifest(directory)


def test_the_plan_is_not_read_over_another_token_store(tmp_path: Path, data: SetData):
    directory = data.write(tmp_path)
    identity = directory / data.manifest["sources"][1]["store"] / "source.json"
    identity.write_text(identity.read_text() + " ")
    with pytest.raises(FormatError, match="is not the token store of source 'web'"):
        open_plan(directory)
    open_shards(directory)  # which needs no token store


def test_damaged_tokens_of_a_store_are_found_on_reading(tmp_path: Path, data: SetData):
    directory = data.write(tmp_path)
    path = directory / data.manifest["sources"][0]["store"] / "parts/00001.tokens"
    damaged = bytearray(path.read_bytes())
    damaged[-1] ^= 1
    path.write_bytes(damaged)
    with pytest.raises(FormatError, match=r"parts/00001.tokens: is damaged: .*block 0"):
        read_all(open_plan(directory))


def test_a_changed_length_never_changes_what_is_read(tmp_path: Path, data: SetData):
    directory = data.write(tmp_path)
    expected = read_all(open_plan(directory))
    for source in data.manifest["sources"]:
        path = directory / source["store"] / "lengths.u32"
        lengths = np.fromfile(path, "<u4")
        (lengths + 1).tofile(path)
    for batch, as_before in zip(read_all(open_plan(directory)), expected, strict=True):
        assert np.array_equal(batch.tokens, as_before.tokens)
        assert np.array_equal(batch.labels, as_before.labels)


def test_a_row_that_stands_elsewhere_is_found(tmp_path: Path):
    data = make_set()
    data.shards[1]["slot"][0] = 1
    reader = open_shards(data.write(tmp_path))
    with pytest.raises(FormatError, match=r"row 0 is step 5, slot 1, must be step 5, slot 0"):
        reader.micro_batch(PARTS[0], 0)


def test_a_part_with_too_few_rows_is_found(tmp_path: Path):
    data = make_set()
    for column in data.shards[1].values():
        column.pop()
    with pytest.raises(FormatError, match="has 5 rows, needs row 5"):
        open_shards(data.write(tmp_path)).micro_batch(STEPS - 1, 1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"steps": STEPS - 1}, r"its rows must be the steps 0\.\.6"),
        ({"first_step": 1}, "segment 0 starts at step 1"),
        ({"intake_tokens": 0}, "intake_tokens is 0, must be a positive integer"),
    ],
)
def test_segments_that_do_not_join_are_refused(
    tmp_path: Path, change: dict[str, int], message: str
):
    data = make_set()
    data.manifest["segments"][0].update(change)
    data.write(tmp_path)
    with pytest.raises(FormatError, match=message):
        load_manifest(tmp_path)
