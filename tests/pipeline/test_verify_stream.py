"""Conservation and totals, broken on purpose in a set whose digests are right: verify speaks."""

from pathlib import Path
from typing import Any

import pytest

from pipeline.shard import schema
from pipeline.verify import conservation, verify
from tests.changes import PLAN, Change, add, both, broken, put, segment
from tests.fixture_set import SetData, make_set


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A valid set; tests that damage it use a copy of their own."""
    return make_set().write(tmp_path_factory.mktemp("verify") / "set")


# --- Law: conservation.
def everywhere(column: str, row: int, entry: int, value: int) -> Change:
    """Change a piece in the plan and the shard alike."""
    return both(*(put(table, column, row, value, entry) for table in ("plan", "shards")))


def swap_epoch(old: int, new: int) -> Change:
    """Move the first placed piece of books' epoch `old` into `new`."""

    def change(data: SetData) -> None:
        for row, sources in enumerate(data.plan[0]["source"]):
            for entry, source in enumerate(sources):
                if source == 0 and data.plan[0]["epoch"][row][entry] == old:
                    return everywhere("epoch", row, entry, new)(data)
        raise AssertionError("no such piece")

    return change


def drop_tail(data: SetData) -> None:
    for column in data.tail.values():
        column.pop()


def move_tail(more: int) -> Change:
    def change(data: SetData) -> None:
        data.tail["position"][0] += more

    return change


def tail(**fields: Any) -> Change:
    """Set fields of the tail's first piece."""
    return lambda data: [data.tail[name].__setitem__(0, v) for name, v in fields.items()] and None


def step_table(column: str) -> Change:
    def change(data: SetData) -> None:
        value = data.steps[column][4]
        data.steps[column][4] = [value[0] + 1, value[1]] if column == "source_tokens" else value + 1

    return change


def total(name: str) -> Change:
    def change(data: SetData) -> None:
        value = data.manifest["totals"][name]
        data.manifest["totals"][name] = {"empty": 2} if name == "rejected" else value + 1

    return change


CONSERVATION_LAWS: dict[str, tuple[Change, str, str]] = {
    "the stream has no gap": (
        add("plan", "position", 4, 1), PLAN, "leave a gap"),
    "the stream has no overlap": (
        add("plan", "position", 4, 1, -1), PLAN, "overlap"),
    "the tail closes the stream": (drop_tail, "tail.parquet", "end at stream position 257"),
    "a gap in the tail": (move_tail(1), "tail.parquet", "leave a gap"),
    "an overlap in the tail": (move_tail(-1), "tail.parquet", "overlap"),
    "pieces of an epoch are disjoint": (swap_epoch(1, 0), "plan/0000", "shares tokens with"),
    "documents are whole but in the last epoch": (
        swap_epoch(0, 1), "plan", "though a later epoch began"),
    "no epoch is skipped": (
        both(
            lambda data: data.manifest["segments"][0]["sources"][1].update(max_epochs=3),
            lambda data: [
                column.__setitem__(row, [2 if s == 1 else e for s, e in zip(
                    part["source"][row], column[row], strict=True)])
                for part in (*data.plan, *data.shards)
                for column in [part["epoch"]] for row in range(len(column))
            ] and None,
            lambda data: data.tail["epoch"].__setitem__(1, 2),
        ), "plan", "epoch 1 holds nothing"),
    "the tail's segment exists": (tail(segment=1), "tail.parquet", "a segment that does not"),
    "the tail's document exists": (tail(doc_id=5), "tail.parquet", "row 0: its document"),
    "the tail's epoch may be": (tail(epoch=2), "tail.parquet", "row 0: its epoch"),
    "the tail is less than a step": (
        segment(intake_tokens=23, max_displacement=9), "tail.parquet", "2 pieces of 23 tokens"),
    "steps.parquet counts every source": (
        lambda data: data.steps["source_tokens"].__setitem__(0, [1]),
        "steps.parquet", "must have 2 entries"),
    **{
        f"steps.parquet has the right {column}": (
            step_table(column), "steps.parquet", f"step 4: '{column}' is")
        for column in schema.STEPS.names if column != "step"
    },
    **{
        f"the manifest has the right {name}": (
            total(name), "manifest.json", f"totals.{name} is")
        for name in make_set().manifest["totals"]
    },
}  # fmt: skip


@pytest.mark.parametrize("law", CONSERVATION_LAWS)
def test_lost_doubled_or_miscounted_tokens_are_found(
    law: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(conservation, "BUCKET_PIECES", 3)  # so that offences lie across buckets
    change, path, message = CONSERVATION_LAWS[law]
    error = broken(change, tmp_path)
    assert path in error.path
    assert message in str(error)
    if "0000" in error.path:
        assert error.row_group is not None


def test_the_size_of_the_buckets_changes_nothing(directory: Path, monkeypatch: pytest.MonkeyPatch):
    whole = verify(directory)
    for bucket in (1, 2, 5):
        monkeypatch.setattr(conservation, "BUCKET_PIECES", bucket)
        assert verify(directory) == whole
