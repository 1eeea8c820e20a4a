"""Every law of a shard's rows, broken on purpose: shards say what plan and stores say."""

from pathlib import Path

import pytest

from tests.changes import SHARD, Change, add, broken, check_is_found, put
from tests.fixture_set import SetData


def test_a_shard_with_fewer_rows_is_found(tmp_path: Path):
    def change(data: SetData) -> None:
        for column in data.shards[1].values():
            column.pop()

    assert "has 5 rows, the plan's part 6" in str(broken(change, tmp_path))


def hide_label(data: SetData) -> None:
    """Say that a document ends where it goes on."""
    labels = data.shards[0]["last_labels"]
    row = next(row for row, values in enumerate(labels) if values[0] != -100)
    labels[row][0] = -100


# --- Law: shards say what the plan says, with the stores' tokens.
SHARD_LAWS: dict[str, tuple[Change, str]] = {
    **{
        f"{name} is the plan's": (add("shards", name, 1), f"'{name}' is")
        for name in ("num_targets", "workload")
    },
    **{
        f"{name} is the plan's": (add("shards", name, 1, 0), f"'{name}' is")
        for name in ("cu_seqlens", "source", "epoch", "doc_id", "doc_start")
    },
    "lists are the plan's": (put("shards", "doc_id", 1, [0]), "another length"),
    "tokens are as many": (put("shards", "tokens", 0, [1] * 15), "must hold the 16 tokens"),
    "tokens are the store's": (add("shards", "tokens", 3, 17), "token 17 is"),
    "last labels are as many": (put("shards", "last_labels", 1, [1]), "one entry a piece"),
    "last labels are true": (add("shards", "last_labels", 0, 0), "last label is"),
    "no label is hidden": (hide_label, "last label is -100"),
    "a document's end has no label": (put("shards", "last_labels", 1, 5, 0), "must be -100"),
}


@pytest.mark.parametrize("law", SHARD_LAWS)
def test_a_shard_that_differs_from_plan_or_store_is_found(law: str, tmp_path: Path):
    change, message = SHARD_LAWS[law]
    check_is_found(change, f"{SHARD}, row group 0: row", message, tmp_path)
