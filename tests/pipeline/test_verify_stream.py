"""Conservation and totals, broken on purpose in a set whose digests are right: verify speaks."""

import math
from pathlib import Path
from typing import Any

import pytest

from pipeline.shard import schema
from pipeline.verify import VerifyError, ran, verify
from tests.changes import PLAN, Change, add, both, broken, offence, put, segment
from tests.fixture_contents import REASONS, UNITS, document_tokens
from tests.fixture_set import SetData, make_set


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
        ), "plan", "epoch 0 holds nothing"),
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


MOST_EPOCHS = 2**31 - 1
COUNTS = [
    "passes", "tokens", *(f"unselected_{unit}" for unit in ("documents", "pieces", "tokens")),
    *(f"{reason}_{unit}" for reason in REASONS for unit in UNITS),
]  # fmt: skip


def of_source(number: int, **fields: Any) -> Change:
    """Set fields of a source in the segment."""
    return lambda data: data.manifest["segments"][0]["sources"][number].update(fields)


def count(number: int, name: str) -> Change:
    def change(data: SetData) -> None:
        data.manifest["segments"][0]["sources"][number][name] += 1

    return change


SELECTION_LAWS: dict[str, tuple[Change, str]] = {
    **{
        f"the segment has the right {name} of source {number}": (
            count(number, name), f"segments.0.sources.{number}.{name} is")
        for name in COUNTS for number in range(2)
    },
    "no part of an epoch is too large": (
        of_source(0, max_epochs=1.5), "the last pass over source 'books' took 102 tokens; "
        "max_epochs 1.5 allows 51"),
    "no epoch is too many": (of_source(0, max_epochs=0.9), "its epoch is not below max_epochs"),
    "dropped documents are not there": (
        of_source(0, longer_than_context="drop"), "longer_than_context of its source leaves out"),
    "no document is too long where that is an error": (
        of_source(0, longer_than_context="error"), "longer_than_context of its source leaves out"),
    "truncated documents end": (
        of_source(0, longer_than_context="truncate"), "over what is taken of it"),
    "short documents are not there": (
        of_source(1, min_tokens=6), "min_tokens or longer_than_context of its source leaves out"),
    "pieces are of the parts of S": (
        segment(context_length=24), "one of the parts of 24 tokens"),
    "sources keep their quotas": (
        of_source(0, weight=0.2), "too far from the"),
    "sources keep their quotas without weights too": (
        both(of_source(0, weight=None), of_source(1, weight=None)), "too far from the"),
    "policies are known": (
        of_source(1, longer_than_context="split"), "longer_than_context is 'split'"),
    "the stream goes on through any number of epochs": (
        of_source(0, max_epochs=MOST_EPOCHS), "neither at a target nor at the end of a source"),
    **{
        f"a source has no {epochs} epochs": (
            of_source(0, max_epochs=epochs), "segments.0.sources.0.max_epochs is")
        for epochs in (0, -1, MOST_EPOCHS + 1, 1e300, math.inf, math.nan)
    },
    **{
        f"no weight is {weight}": (
            of_source(1, weight=weight), "segments.0.sources.1.weight is")
        for weight in (0, -0.5, math.inf, math.nan)
    },
    "sources stand once": (of_source(1, source=0), "segments.0.sources are [0, 0]"),
    "the end is known": (segment(at_source_end="go on"), "at_source_end is 'go on'"),
    "the target is not exceeded": (
        segment(target_tokens=263), "the stream has 264 tokens, its target is 263"),
    "the stream goes on to every source's end": (
        segment(at_source_end="drop"), "neither at a target nor at the end of every source"),
    "the stream goes on to its target": (
        segment(at_source_end="drop", target_tokens=280), "neither at a target"),
    "the stream goes on to a source's end": (
        both(of_source(0, max_epochs=3)), "neither at a target nor at the end of a source"),
    "the stream goes on to the end of a part of an epoch": (
        both(of_source(0, max_epochs=2.5)), "neither at a target nor at the end of a source"),
}  # fmt: skip


@pytest.mark.parametrize("law", SELECTION_LAWS)
def test_what_a_segment_says_of_its_sources_is_computed_again(law: str, tmp_path: Path):
    change, message = SELECTION_LAWS[law]
    assert message in str(broken(change, tmp_path))


@pytest.mark.parametrize("max_epochs", [2, MOST_EPOCHS])
def test_a_stream_may_end_within_a_piece_of_its_target(max_epochs: int, tmp_path: Path):
    data = make_set()
    segment(at_source_end="drop", target_tokens=279)(data)
    of_source(0, max_epochs=max_epochs)(data)
    verify(data.write(tmp_path))


@pytest.mark.parametrize("policy", ["truncate", "drop"])
@pytest.mark.parametrize("min_tokens", [1, 5])
def test_documents_set_aside_by_policy_are_not_missed(policy: str, min_tokens: int, tmp_path: Path):
    data = make_set(policy, min_tokens)
    totals = data.manifest["totals"]
    assert (totals["too_long_documents"], totals["truncated_documents"]) == (
        (3, 0) if policy == "drop" else (0, 3)
    )
    assert totals["too_short_documents"] == (0 if min_tokens == 1 else 4)
    assert len(data.plan[1]["step"]) > 0
    verify(data.write(tmp_path))


@pytest.mark.parametrize("policy", ["truncate", "drop"])
def test_counts_of_a_policy_are_computed_again(policy: str, tmp_path: Path):
    data = make_set(policy, 5)
    directory = data.write(tmp_path)
    for name in COUNTS:
        entry = data.manifest["segments"][0]["sources"][0]
        entry[name] += 1
        data.write_manifest(directory)
        assert f"segments.0.sources.0.{name} is" in str(offence(directory))
        entry[name] -= 1


def test_a_truncated_document_has_no_next_token(tmp_path: Path):
    data = make_set("truncate")
    columns = data.shards[0]
    row, entry = next(
        (row, entry)
        for row, documents in enumerate(columns["doc_id"])
        for entry, doc_id in enumerate(documents)
        if columns["source"][row][entry] == 0 and doc_id == 0
    )
    assert columns["last_labels"][row][entry] == -100
    columns["last_labels"][row][entry] = document_tokens(0, 0, 17)[16]  # the true one
    error = offence(data.write(tmp_path))
    assert "must be -100, what follows in what is taken of the document" in str(error)


@pytest.mark.parametrize("law", CONSERVATION_LAWS)
def test_lost_doubled_or_miscounted_tokens_are_found(
    law: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(ran, "BUCKET_PIECES", 3)  # so that offences lie across buckets
    change, path, message = CONSERVATION_LAWS[law]
    error = broken(change, tmp_path)
    assert path in error.path
    assert message in str(error)
    if "0000" in error.path:
        assert error.row_group is not None


@pytest.mark.parametrize("pieces", [1 << 60, 0, -1, 1.5, None])
def test_a_false_count_of_pieces_sizes_nothing(pieces: Any, tmp_path: Path):
    data = make_set()
    data.manifest["totals"]["stream_pieces"] = pieces
    buckets = []
    with pytest.raises(VerifyError, match=rf"totals.stream_pieces is {pieces}, the files give"):
        verify(
            data.write(tmp_path),
            progress=lambda stage, _, total: buckets.append(total) if stage == "stream" else None,
        )
    assert set(buckets) == {1}


def test_the_size_of_the_buckets_changes_nothing(directory: Path, monkeypatch: pytest.MonkeyPatch):
    whole = verify(directory)
    for bucket in (1, 2, 5):
        monkeypatch.setattr(ran, "BUCKET_PIECES", bucket)
        assert verify(directory) == whole
