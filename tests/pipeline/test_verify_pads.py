"""Every law of CP plans with pads, broken on purpose."""

from pathlib import Path

import pytest

from pipeline.verify import verify
from tests.changes import CP, Change, both, broken, check_is_found, padded, put_chunks, segment
from tests.fixture_set import SetData, make_set

# --- Law: pads, where a plan has them, fill every piece up and lie as kernels cut it. Row 0 is one
# piece of 16 tokens and 8 pads; of its quarters rank 0 holds the first and the last.
PADDED_ROW = ((0, 0, 0, 6), (0, -1, 2, 8), (1, 0, 6, 16), (1, -1, 0, 2))
PAD_LAWS: dict[str, tuple[Change, str]] = {
    "the manifest speaks of pads": (
        lambda data: data.manifest["cp"]["2"].pop("pad_multiple"),
        "has a place only where 'pad_multiple'",
    ),
    "a row keeps S_max with its pads": (segment(max_tokens=47), "48 tokens and pads, at most 47"),
    "pads exist": (
        put_chunks(0, *PADDED_ROW[:1], (0, -1, 2, 9), *PADDED_ROW[2:]),
        "not a non-empty part of 8 pads",
    ),
    "pads are of one piece": (put_chunks(1, (0, -1, 2, 4)), "[2, 4) are of more than one piece"),
    "pads come after their tokens": (
        put_chunks(0, PADDED_ROW[1], PADDED_ROW[0], *PADDED_ROW[2:]),
        "pads last in their piece",
    ),
    "pads that touch are one": (
        put_chunks(0, PADDED_ROW[0], (0, -1, 2, 5), (0, -1, 5, 8), *PADDED_ROW[2:]),
        "must be one",
    ),
    "no pad is doubled": (
        put_chunks(0, PADDED_ROW[0], (0, -1, 1, 8), *PADDED_ROW[2:]),
        "pad 1 is where tiling breaks",
    ),
    "no pad is left out": (
        put_chunks(0, *PADDED_ROW[:3], (1, -1, 0, 1)),
        "pad 2 is where tiling breaks",
    ),
    "no last pad is left out": (
        put_chunks(0, PADDED_ROW[0], (0, -1, 2, 7), *PADDED_ROW[2:]),
        "of a piece of 24 tokens and pads, those from 23 are in no chunk",
    ),
    "shares are even": (
        put_chunks(0, (0, 0, 0, 5), PADDED_ROW[1], (1, 0, 5, 16), PADDED_ROW[3]),
        "ranks hold [11, 13] tokens",
    ),
    "each rank has its own parts": (
        put_chunks(0, (0, 0, 6, 16), (0, -1, 0, 2), (1, 0, 0, 6), (1, -1, 2, 8)),
        "parts 1 to 2 of the 4 equal parts of its padded piece; rank 0 holds only 0 and 3",
    ),
    "nothing of another rank's part": (
        put_chunks(0, (0, 0, 0, 12), (1, 0, 12, 16), (1, -1, 0, 8)),
        "parts 0 to 1 of the 4 equal parts",
    ),
}


@pytest.mark.parametrize("law", PAD_LAWS)
def test_a_broken_law_of_padded_cp_plans_is_found(law: str, tmp_path: Path):
    change, message = PAD_LAWS[law]
    check_is_found(both(padded(12), change), f"{CP}, row group ", message, tmp_path)


@pytest.mark.parametrize(("multiple", "most"), [(4, 24), (12, 48)])
def test_a_padded_cp_plan_passes_up_to_the_bound_on_tokens(
    multiple: int, most: int, tmp_path: Path
):
    data = make_set()
    padded(multiple, max_tokens=most)(data)
    assert sum(piece == -1 for row in data.cp[0]["piece"] for piece in row) > 5
    assert verify(data.write(tmp_path)).rows == 16


@pytest.mark.parametrize("multiple", [0, 6, "12", True, 1 << 40, 1 << 70])
def test_a_multiple_that_no_plan_can_have_is_refused(multiple: object, tmp_path: Path):
    def change(data: SetData) -> None:
        data.manifest["cp"]["2"]["pad_multiple"] = multiple

    error = broken(both(padded(12), change), tmp_path)
    assert f"cp.2.pad_multiple is {multiple!r}; it must be 1 or a multiple of 2 x 2" in str(error)
