"""Every law of a plan's rows, broken on purpose in a set whose digests are right."""

from pathlib import Path

import pytest

from tests.changes import PLAN, Change, add, both, broken, check_is_found, put, segment, swap_slots
from tests.fixture_set import SetData

# --- Law: rows stand in order, within bounds, and sums are what their pieces give.
PLAN_LAWS: dict[str, tuple[Change, str]] = {
    "steps ascend": (add("plan", "step", 2), "must be step 1, slot 0"),
    "slots ascend": (put("plan", "slot", 0, 1), "must be step 0, slot 0"),
    "no row is empty": (
        both(
            put("plan", "cu_seqlens", 1, [0]),
            *(
                put("plan", name, 1, [])
                for name in ("source", "epoch", "doc_id", "doc_start", "doc_stop", "position")
            ),
        ),
        "holds no piece",
    ),
    "lists of a row are of one length": (put("plan", "epoch", 1, [0]), "different lengths"),
    "boundaries are one more": (put("plan", "cu_seqlens", 1, [0, 16]), "one entry more"),
    "boundaries start at 0": (put("plan", "cu_seqlens", 1, 1, 0), "must start at 0"),
    "boundaries are the pieces": (add("plan", "cu_seqlens", 1, 1), "by 'cu_seqlens'"),
    "the source exists": (put("plan", "source", 1, 2, 0), "not one of the segment's"),
    "the source is the segment's": (
        lambda data: data.manifest["segments"][0]["sources"].pop(),
        "not one of the segment's",
    ),
    "the epoch may be": (put("plan", "epoch", 1, 2, 0), "not below max_epochs"),
    "the document exists": (put("plan", "doc_id", 1, 10, 0), "not in the token store"),
    "a piece lies in its document": (
        both(add("plan", "doc_start", 1, 0, 3), add("plan", "doc_stop", 1, 0, 3)),
        "reaches over its document",
    ),
    "a piece is not longer than S": (segment(context_length=15), "longer than the context"),
    "a piece lies in the stream": (put("plan", "position", 1, 264, 2), "not within the stream"),
    "a row keeps S_max": (segment(max_tokens=18), "19 tokens, at most 18"),
    "a row keeps max_pieces": (segment(max_pieces=3), "4 pieces, at most 3"),
    "positions ascend in a row": (add("plan", "position", 1, 0, 30), "positions must ascend"),
    "displacement keeps its bound": (segment(max_displacement=0), "a displacement of 1"),
    "num_targets is right": (add("plan", "num_targets", 0), "num_targets is"),
    "workload is right": (add("plan", "workload", 0), "workload is"),
    "workload has its constant": (
        lambda data: data.manifest["workload"].update(constant=511),
        "workload is",
    ),
    "slots do not increase in workload": (swap_slots(0), "must not increase in workload"),
    "ties stand by position": (swap_slots(3), "must not increase in workload"),
}


@pytest.mark.parametrize("law", PLAN_LAWS)
def test_a_broken_law_of_plan_rows_is_found(law: str, tmp_path: Path):
    change, message = PLAN_LAWS[law]
    check_is_found(change, f"{PLAN}, row group ", message, tmp_path)


def test_the_row_group_of_the_offending_row_is_named(tmp_path: Path):
    error = broken(add("plan", "workload", 9), tmp_path)
    assert error.row_group == 2
    assert "row group 2: row 9 (step 4, slot 1): workload" in str(error)


def test_a_part_that_does_not_hold_whole_steps_is_found(tmp_path: Path):
    def change(data: SetData) -> None:
        for column in data.plan[1].values():
            column.pop()

    assert "do not make whole steps" in str(broken(change, tmp_path))


@pytest.mark.parametrize(
    ("steps", "message"),
    [(7, "the segment ends before step 7"), (9, "ends with step 7, the segment with step 8")],
)
def test_parts_hold_the_steps_of_their_segment(steps: int, message: str, tmp_path: Path):
    def change(data: SetData) -> None:
        segment(steps=steps)(data)
        for name, column in data.steps.items():
            last = 8 if name == "step" else column[-1]
            data.steps[name] = [*column, last][:steps]

    error = broken(change, tmp_path)
    assert "plan/00001.parquet" in str(error)
    assert message in str(error)
