"""Every law of rows, broken on purpose in a set whose digests are right: verify speaks."""

from pathlib import Path

import numpy as np
import pytest

from packer.context_parallel import STRATEGIES, CPOptions, plan_context_parallel
from packer.workload import Workload
from pipeline.planning.cp_options import describe_options
from pipeline.verify import VerifyReport, verify
from tests import changes
from tests.changes import CP, PLAN, SHARD, Change, add, both, broken, put, segment, swap_slots
from tests.fixture_set import CROSSOVER, SetData, make_set


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A valid set; tests that damage it use a copy of their own."""
    return make_set().write(tmp_path_factory.mktemp("verify") / "set")


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
    assert len(report.laws) == 14
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
    error = broken(change, tmp_path)
    assert f"{PLAN}, row group " in str(error)
    assert message in str(error)


def test_the_row_group_of_the_offending_row_is_named(tmp_path: Path):
    error = broken(add("plan", "workload", 9), tmp_path)
    assert error.row_group == 2
    assert "row group 2: row 9 (step 4, slot 1): workload" in str(error)


def test_a_part_that_does_not_hold_whole_steps_is_found(tmp_path: Path):
    def change(data: SetData) -> None:
        for column in data.plan[1].values():
            column.pop()

    assert "do not make whole steps" in str(broken(change, tmp_path))


def test_a_shard_with_fewer_rows_is_found(tmp_path: Path):
    def change(data: SetData) -> None:
        for column in data.shards[1].values():
            column.pop()

    assert "has 5 rows, the plan's part 6" in str(broken(change, tmp_path))


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
    error = broken(change, tmp_path)
    assert f"{SHARD}, row group 0: row" in str(error)
    assert message in str(error)


def chunks(row: int, *values: tuple[int, int, int, int]) -> Change:
    """Replace a row's chunks by these (cp_rank, piece, start, stop)."""
    names = ("cp_rank", "piece", "start", "stop")
    return both(
        *(put("cp", name, row, [value[i] for value in values]) for i, name in enumerate(names))
    )


# --- Law: CP plans tile every micro-batch. Row 0 is one piece of 16 tokens.
CP_LAWS: dict[str, tuple[Change, str]] = {
    "rows are the plan's": (add("cp", "slot", 0), "'slot' is 1, the plan says 0"),
    "every rank has a prediction": (put("cp", "predicted", 0, [1]), "must have 2 entries"),
    "lists are of one length": (put("cp", "stop", 0, [8]), "different lengths"),
    "ranks exist": (chunks(0, (0, 0, 0, 8), (2, 0, 8, 16)), "cp_rank 2 is not in 0..1"),
    "pieces exist": (chunks(0, (0, 0, 0, 8), (1, 1, 8, 16)), "piece 1 is not in 0..0"),
    "there is no padding": (chunks(0, (0, -1, 0, 8), (1, 0, 0, 16)), "has a place only where"),
    "chunks are not empty": (
        chunks(0, (0, 0, 0, 8), (1, 0, 8, 8), (1, 0, 9, 16)),
        "not a non-empty part",
    ),
    "chunks lie in their piece": (chunks(0, (0, 0, 0, 8), (1, 0, 8, 17)), "not a non-empty part"),
    "ranks ascend": (chunks(0, (1, 0, 0, 8), (0, 0, 8, 16)), "must ascend"),
    "starts ascend": (chunks(0, (0, 0, 12, 16), (0, 0, 0, 4), (1, 0, 4, 12)), "must ascend"),
    "chunks that touch are one": (
        chunks(0, (0, 0, 0, 4), (0, 0, 4, 8), (1, 0, 8, 16)),
        "must be one",
    ),
    "no token is doubled": (chunks(0, (0, 0, 0, 9), (1, 0, 8, 16)), "tiling breaks"),
    "no token is left out": (chunks(0, (0, 0, 0, 7), (1, 0, 8, 16)), "tiling breaks"),
    "no first token is left out": (chunks(0, (0, 0, 1, 8), (1, 0, 8, 16)), "tiling breaks"),
    "no last token is left out": (chunks(0, (0, 0, 0, 8), (1, 0, 8, 15)), "in no chunk"),
    "no piece is left out": (
        chunks(3, (0, 0, 0, 8), (0, 1, 0, 1), (1, 1, 1, 8), (1, 2, 0, 1)),
        "those from 0 are in no chunk",
    ),
    "shares are even": (chunks(0, (0, 0, 0, 7), (1, 0, 7, 16)), "ranks hold [7, 9] tokens"),
    "no rank is left out": (chunks(0, (0, 0, 0, 16)), "ranks hold [16, 0] tokens"),
    "predictions are those of the chunks": (add("cp", "predicted", 3, 1), "; its chunks make ["),
    "predictions move with the chunks": (
        chunks(0, (0, 0, 0, 8), (1, 0, 8, 16)),
        "; its chunks make [",
    ),
    "the exchange has its price": (
        lambda data: data.manifest["cp"]["2"].update(kv_exchange=0.5),
        "; its chunks make [",
    ),
    "the strategy is the degree's": (
        put("cp", "strategy", 2, "mixed"),
        "strategy is 'mixed', the manifest says 'per_sequence'",
    ),
    "nothing is considered without a choice": (
        put("cp", "considered", 1, [5]),
        "'considered' must have 0 entries",
    ),
}


@pytest.mark.parametrize("law", CP_LAWS)
def test_a_broken_law_of_cp_plans_is_found(law: str, tmp_path: Path):
    change, message = CP_LAWS[law]
    error = broken(change, tmp_path)
    assert f"{CP}, row group 0: row" in str(error)
    assert message in str(error)


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
    error = broken(both(adaptive, change), tmp_path)
    assert f"{CP}, row group 0: row" in str(error)
    assert message in str(error)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"throughput": "profile"}, 'throughput is "profile", but the workload model has no'),
        ({"throughput": {"query_tokens": [1]}}, "throughput must be an object"),
        ({"kv_exchange": -1}, "kv_exchange is -1; it must be 0 to 64"),
        ({"kv_exchange": None}, "kv_exchange is None; it must be a number"),
        ({"candidates": ["mixed", "mixed"]}, "candidates a list of distinct ones"),
        ({"strategy": 1}, "strategy must be a string"),
    ],
)
def test_a_degree_that_is_described_badly_is_refused(
    fields: dict[str, object], words: str, tmp_path: Path
):
    error = broken(lambda data: data.manifest["cp"]["2"].update(fields), tmp_path)
    assert "manifest.json" in str(error)
    assert "cp.2: a field is missing or malformed: " in str(error)
    assert words in str(error)


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
        chunks(0, *PADDED_ROW[:1], (0, -1, 2, 9), *PADDED_ROW[2:]),
        "not a non-empty part of 8 pads",
    ),
    "pads are of one piece": (chunks(1, (0, -1, 2, 4)), "[2, 4) are of more than one piece"),
    "pads come after their tokens": (
        chunks(0, PADDED_ROW[1], PADDED_ROW[0], *PADDED_ROW[2:]),
        "pads last in their piece",
    ),
    "pads that touch are one": (
        chunks(0, PADDED_ROW[0], (0, -1, 2, 5), (0, -1, 5, 8), *PADDED_ROW[2:]),
        "must be one",
    ),
    "no pad is doubled": (
        chunks(0, PADDED_ROW[0], (0, -1, 1, 8), *PADDED_ROW[2:]),
        "pad 1 is where tiling breaks",
    ),
    "no pad is left out": (
        chunks(0, *PADDED_ROW[:3], (1, -1, 0, 1)),
        "pad 2 is where tiling breaks",
    ),
    "no last pad is left out": (
        chunks(0, PADDED_ROW[0], (0, -1, 2, 7), *PADDED_ROW[2:]),
        "of a piece of 24 tokens and pads, those from 23 are in no chunk",
    ),
    "shares are even": (
        chunks(0, (0, 0, 0, 5), PADDED_ROW[1], (1, 0, 5, 16), PADDED_ROW[3]),
        "ranks hold [11, 13] tokens",
    ),
    "each rank has its own parts": (
        chunks(0, (0, 0, 6, 16), (0, -1, 0, 2), (1, 0, 0, 6), (1, -1, 2, 8)),
        "parts 1 to 2 of the 4 equal parts of its padded piece; rank 0 holds only 0 and 3",
    ),
    "nothing of another rank's part": (
        chunks(0, (0, 0, 0, 12), (1, 0, 12, 16), (1, -1, 0, 8)),
        "parts 0 to 1 of the 4 equal parts",
    ),
}


@pytest.mark.parametrize("law", PAD_LAWS)
def test_a_broken_law_of_padded_cp_plans_is_found(law: str, tmp_path: Path):
    change, message = PAD_LAWS[law]
    error = broken(both(changes.padded(12), change), tmp_path)
    assert f"{CP}, row group " in str(error)
    assert message in str(error)


@pytest.mark.parametrize(("multiple", "most"), [(4, 24), (12, 48)])
def test_a_padded_cp_plan_passes_up_to_the_bound_on_tokens(
    multiple: int, most: int, tmp_path: Path
):
    data = make_set()
    changes.padded(multiple, max_tokens=most)(data)
    assert sum(piece == -1 for row in data.cp[0]["piece"] for piece in row) > 5
    assert verify(data.write(tmp_path)).rows == 16


@pytest.mark.parametrize("multiple", [0, 6, "12"])
def test_a_multiple_that_no_plan_can_have_is_refused(multiple: object, tmp_path: Path):
    def change(data: SetData) -> None:
        data.manifest["cp"]["2"]["pad_multiple"] = multiple

    error = broken(both(changes.padded(12), change), tmp_path)
    assert f"cp.2.pad_multiple is {multiple!r}; it must be 1 or a multiple of 2 x 2" in str(error)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_plans_of_every_strategy_pass(strategy: str, tmp_path: Path):
    data = make_set()
    segment(max_tokens=1_000)(data)
    workload, options = Workload(crossover=CROSSOVER), CPOptions(kv_exchange=0.5)
    data.manifest["cp"]["2"] = describe_options(strategy, options, workload, 2)
    for plan, columns in zip(data.plan, data.cp, strict=True):
        for row, cu_seqlens in enumerate(plan["cu_seqlens"]):
            lengths = np.diff(cu_seqlens)
            planned = plan_context_parallel(
                lengths,
                np.array([0, len(lengths)]),
                cp_size=2,
                strategy=strategy,
                workload=workload,
                options=options,
            )
            for name in ("cp_rank", "piece", "start", "stop"):
                columns[name][row] = getattr(planned, name).tolist()
            for name in ("predicted", "considered"):
                columns[name][row] = getattr(planned, name)[0].tolist()
            columns["strategy"][row] = planned.strategy[0]
    assert verify(data.write(tmp_path)).rows == 16


def test_ranks_may_differ_by_one_token():
    data = make_set()
    counts = []
    for cu_seqlens, rank, start, stop in zip(
        data.plan[0]["cu_seqlens"], *(data.cp[0][name] for name in ("cp_rank", "start", "stop")),
        strict=True,
    ):  # fmt: skip
        first = sum(b - a for r, a, b in zip(rank, start, stop, strict=True) if r == 0)
        counts.append(abs(cu_seqlens[-1] - 2 * first))
    assert set(counts) == {0, 1}
