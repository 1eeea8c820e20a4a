"""A valid set passes verify, and it is a set in which the rare cases occur."""

from pathlib import Path

from pipeline.verify import VerifyReport, verify
from tests.fixture_set import make_set


def test_a_valid_set_passes_and_everything_in_it_is_counted(directory: Path):
    calls: list[tuple[str, int, int]] = []
    report = verify(directory, progress=lambda *call: calls.append(call))
    files = [path for path in directory.rglob("*") if path.is_file()]
    assert report == VerifyReport(
        files=len(files),
        bytes=sum(path.stat().st_size for path in files),
        row_groups=15,
        rows=16,
        pieces=27,
        tokens=241,
    )
    assert len(report.laws) == 15
    assert {stage for stage, done, total in calls if done == total} == {
        "files", "store books", "store web", "parts", "stream", "documents",
    }  # fmt: skip


def test_the_fixture_holds_the_rare_cases():
    data = make_set()
    plan = {name: data.plan[0][name] + data.plan[1][name] for name in data.plan[0]}
    displacement = [
        abs(step - position // 32)
        for step, positions in zip(plan["step"], plan["position"], strict=True)
        for position in positions
    ]
    assert max(displacement) > 0
    assert plan["workload"][6] == plan["workload"][7]  # a tie inside step 3
    assert max(map(max, plan["epoch"])) == 1
    assert any(max(starts) > 0 for starts in plan["doc_start"])
    assert data.manifest["totals"]["tail_pieces"]
    assert data.manifest["totals"]["unselected_tokens"]
    labels = [label for part in data.shards for row in part["last_labels"] for label in row]
    assert -100 in labels
    assert max(labels) > 0
