"""How a CP degree was planned: its description, and the choice between strategies."""

from pathlib import Path

import pytest

from pipeline.verify import verify
from tests.changes import CP, Change, both, broken, check_is_found, put
from tests.fixture_set import SetData, make_set


def adaptive(data: SetData) -> None:
    """The same chunks, as the choice of each micro-batch between two strategies."""
    data.manifest["cp"]["2"].update(
        strategy="adaptive", candidates=["per_document", "per_sequence", "mixed"]
    )
    for columns in data.cp:
        slowest = [max(work) for work in columns["predicted"]]
        columns["considered"] = [[work + 1, work, work] for work in slowest]


def cheapen(data: SetData) -> None:
    data.cp[0]["considered"][0] = [work - 1 for work in data.cp[0]["considered"][0]]


# --- Law: of candidates the one of least time was chosen, of equals the first.
CHOICE_LAWS: dict[str, tuple[Change, str]] = {
    "every candidate has a figure": (
        put("cp", "considered", 1, [5, 6]),
        "'considered' must have 3 entries",
    ),
    "the least is chosen": (
        put("cp", "considered", 0, 1, 0),
        "it must be the first of the least, 'per_document'",
    ),
    "of equals the first": (put("cp", "strategy", 0, "mixed"), "it must be the first of the least"),
    "its figure is its slowest rank's": (cheapen, "the slowest rank is predicted"),
}


def test_a_choice_between_strategies_passes(tmp_path: Path):
    data = make_set()
    adaptive(data)
    assert verify(data.write(tmp_path)).rows == 16


@pytest.mark.parametrize("law", CHOICE_LAWS)
def test_a_wrong_choice_between_strategies_is_found(law: str, tmp_path: Path):
    change, message = CHOICE_LAWS[law]
    check_is_found(both(adaptive, change), f"{CP}, row group 0: row", message, tmp_path)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"throughput": "profile"}, 'throughput is "profile", but the workload model has no'),
        ({"throughput": {"query_tokens": [1]}}, "throughput must be an object"),
        ({"kv_exchange": -1}, "kv_exchange is -1; it must be 0 to 64"),
        ({"kv_exchange": None}, "kv_exchange is None; it must be a number"),
        ({"candidates": ["mixed", "mixed"]}, "candidates a list of distinct ones"),
        ({"strategy": 1}, "strategy must be a string"),
        ({"strategy": "adaptive"}, "strategy is 'adaptive', candidates are []; adaptive, and it"),
        ({"candidates": ["mixed"]}, "candidates are ['mixed']; adaptive, and it alone, has some"),
    ],
)
def test_a_degree_that_is_described_badly_is_refused(
    fields: dict[str, object], words: str, tmp_path: Path
):
    error = broken(lambda data: data.manifest["cp"]["2"].update(fields), tmp_path)
    assert "manifest.json" in str(error)
    assert "cp.2: a field is missing or malformed: " in str(error)
    assert words in str(error)
