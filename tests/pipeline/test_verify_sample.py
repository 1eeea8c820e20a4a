"""A sample finds what it reads, says what that was, and claims nothing of the rest."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from pipeline.verify import Sample, SampleReport, VerifyError, verify, verify_sample
from tests.changes import Change, add, offence, segment
from tests.fixture_set import SetData, make_set

HALF = Sample(share=0.5)
"""Of the set's two parts, and of the two of books, one; of web the only one."""


def parts_of(report: SampleReport) -> dict[str, tuple[int, ...]]:
    return {entry.kind: entry.parts for entry in report.sampled}


def offence_of(directory: Path, sample: Sample) -> str:
    """What a sample finds; empty for nothing."""
    try:
        verify_sample(directory, sample)
    except VerifyError as error:
        return str(error)
    return ""


def test_a_sample_has_its_share_of_each_kind_and_at_least_one():
    sample = Sample(share=0.01)
    assert len(sample.of("store web", 1_000)) == 10
    assert len(sample.of("store web", 1_001)) == 11
    assert len(sample.of("store web", 3)) == 1
    assert sample.of("store web", 1) == (0,)
    assert sample.of("store web", 0) == ()
    assert sample.of("store web", 1_000) == Sample(share=0.01).of("store web", 1_000)
    assert sample.of("store web", 1_000) != sample.of("store books", 1_000)
    assert sample.of("store web", 1_000) != Sample(share=0.01, seed=1).of("store web", 1_000)


def test_every_part_is_in_the_share_of_seeds_that_was_asked_for():
    hits = [0] * 40
    for seed in range(2_000):
        for part in Sample(share=0.1, seed=seed).of("segment 0", 40):
            hits[part] += 1
    assert 150 < min(hits) <= max(hits) < 250


@pytest.mark.parametrize("share", [0.0, 1.0, -1.0, 2.0, float("nan")])
def test_a_share_is_above_0_and_below_1(share: float):
    with pytest.raises(ValueError, match="must be above 0 and below 1"):
        Sample(share=share)


def test_the_report_says_what_was_read(directory: Path):
    calls: list[tuple[str, int, int]] = []
    report = verify_sample(directory, HALF, progress=lambda *call: calls.append(call))
    parts = parts_of(report)
    assert {kind: len(chosen) for kind, chosen in parts.items()} == {
        "segment 0": 1, "store books": 1, "store web": 1,
    }  # fmt: skip
    assert [entry.of for entry in report.sampled] == [2, 2, 1]
    files = [path for path in directory.rglob("*") if path.is_file()]
    assert report.files == len(files)
    assert report.all_bytes == sum(path.stat().st_size for path in files)
    other = f"0000{1 - parts['segment 0'][0]}.parquet"
    unread = [directory / folder / other for folder in ("plan", "shards", "cp=2")]
    (books,) = directory.glob("store*/books*")
    unread.append(books / "parts" / f"0000{1 - parts['store books'][0]}.tokens")
    assert report.bytes == report.all_bytes - sum(path.stat().st_size for path in unread)
    assert report.chance == report.bytes / report.all_bytes
    assert report.rows == (10, 6)[parts["segment 0"][0]]
    assert "laws" not in asdict(report)
    assert "conservation" in " ".join(report.not_checked)
    assert ("parts", 1, 1) in calls


@pytest.mark.parametrize("seed", range(4))
def test_a_flipped_bit_is_found_where_the_sample_reads_and_only_there(seed: int, tmp_path: Path):
    directory, sample = make_set().write(tmp_path), Sample(share=0.5, seed=seed)
    parts = parts_of(verify_sample(directory, sample))
    found: list[bool] = []
    for path in sorted(directory.rglob("*")):
        content = path.read_bytes() if path.is_file() else b""
        if not content:
            continue
        damaged = bytearray(content)
        damaged[len(content) // 2] ^= 4
        path.write_bytes(damaged)
        name = path.relative_to(directory).as_posix()
        if name.startswith(("plan/", "shards/", "cp=")):
            is_read = int(path.stem) in parts["segment 0"]
        elif path.suffix == ".tokens" and "books" in name:
            is_read = int(path.stem) in parts["store books"]
        else:
            is_read = True
        message = offence_of(directory, sample)
        if is_read:
            assert name in message or "manifest" in name
        elif path.suffix != ".tokens":  # a shard may show what is wrong with a store's token
            assert not message
        found.append(bool(message))
        path.write_bytes(content)
    assert found.count(False) in (3, 4)


def test_which_half_is_read_depends_on_the_seed(directory: Path):
    chosen = {parts_of(verify_sample(directory, Sample(share=0.5, seed=seed)))["segment 0"]
              for seed in range(12)}  # fmt: skip
    assert chosen == {(0,), (1,)}


@pytest.mark.parametrize("name", ["plan/00000", "plan/00001", "shards/00000", "cp=2/00001"])
@pytest.mark.parametrize("seed", range(3))
def test_sizes_are_checked_of_all_files(name: str, seed: int, tmp_path: Path):
    directory, sample = make_set().write(tmp_path), Sample(share=0.5, seed=seed)
    path = directory / f"{name}.parquet"
    path.write_bytes(path.read_bytes() + b"\0")
    with pytest.raises(VerifyError, match=r"parquet: has \d+ bytes, files.parquet says"):
        verify_sample(directory, sample)
    path.unlink()
    with pytest.raises(VerifyError, match="is missing"):
        verify_sample(directory, sample)


@pytest.mark.parametrize("part", [0, 1])
def test_sizes_of_all_tokens_are_checked(part: int, tmp_path: Path):
    directory = make_set().write(tmp_path)
    (path,) = directory.glob(f"store*/books*/parts/0000{part}.tokens")
    path.write_bytes(path.read_bytes()[:-2])
    with pytest.raises(VerifyError, match=r"has \d+ bytes, must have"):
        verify_sample(directory, HALF)


def step_value(column: str, step: int, more: int) -> Change:
    def change(data: SetData) -> None:
        data.steps[column][step] += more

    return change


def total(name: str) -> Change:
    def change(data: SetData) -> None:
        data.manifest["totals"][name] += 1

    return change


WITHOUT_ROWS: dict[str, tuple[Change, str]] = {
    "a step's tokens": (step_value("tokens", 6, 1), "'tokens' is"),
    "running tokens": (step_value("cumulative_tokens", 2, 1), "'cumulative_tokens' is"),
    "running targets": (step_value("cumulative_targets", 7, -1), "'cumulative_targets' is"),
    "a step's part": (step_value("part", 6, -1), "'part' is"),
    "the first step's part": (step_value("part", 0, 1), "'part' is"),
    "the last step's part": (step_value("part", 7, 1), "ends in part 2"),
    "a segment's parts": (segment(parts=3), "does not list cp=2/00002.parquet"),
    "a step's segment": (step_value("segment", 0, 1), "'segment' is"),
    "placed tokens": (total("placed_tokens"), "totals.placed_tokens"),
    "steps": (total("steps"), "totals.steps"),
    "the tail's tokens": (total("tail_tokens"), "totals.tail_tokens"),
    "documents": (total("documents"), "totals.documents"),
}


@pytest.mark.parametrize("what", WITHOUT_ROWS)
def test_what_tables_say_is_checked_without_rows(what: str, tmp_path: Path):
    data = make_set()
    change, message = WITHOUT_ROWS[what]
    change(data)
    directory = data.write(tmp_path)
    with pytest.raises(VerifyError, match=message.replace(".", r"\.")):
        verify_sample(directory, HALF)
    offence(directory)


def seed_with(part: int, directory: Path) -> Sample:
    """A sample of half the parts that has this one of the set."""
    return next(
        sample
        for sample in (Sample(share=0.5, seed=seed) for seed in range(50))
        if sample.of("segment 0", 2) == (part,)
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (add("plan", "workload", 3), "workload is"),
        (add("plan", "num_targets", 3), "num_targets is"),
        (add("shards", "last_labels", 1, 0), "last label is"),
        (add("cp", "predicted", 1, 0), "predicted"),
    ],
)
def test_row_laws_are_checked_in_the_sample(change: Any, message: str, tmp_path: Path):
    data = make_set()
    change(data)
    directory = data.write(tmp_path)
    with pytest.raises(VerifyError, match=message):
        verify_sample(directory, seed_with(0, directory))
    verify_sample(directory, seed_with(1, directory))


def test_conservation_is_not_checked_and_only_the_whole_shows_it(tmp_path: Path):
    data = make_set()
    add("plan", "position", 4, 1)(data)
    directory = data.write(tmp_path)
    for part in range(2):
        verify_sample(directory, seed_with(part, directory))
    with pytest.raises(VerifyError, match="leave a gap"):
        verify(directory)
