"""verify says the same wherever its units run, whichever of them is done first."""

from __future__ import annotations

import itertools
import json
import pickle
import random
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from jobs import verifying
from jobs.executor import LocalExecutor, open_executor
from jobs.fork import fork
from jobs.verifying import settings_of, verify_set
from pipeline.config import ConfigError, JobSettings
from pipeline.shard.tables import FormatError
from pipeline.verify import Sample, VerifyError, VerifyReport, verify, verify_sample
from pipeline.verify.result import LAWS
from tests.changes import add, both, put
from tests.fixture_set import SetData, make_set
from tests.jobs.command_line import run
from tests.jobs.small_run import QUIET

LOCAL = JobSettings(executor="local")
TWO = JobSettings(workers=2)


class Shuffling(LocalExecutor):
    """Takes units ahead and runs them in another order; what goes in and out is pickled."""

    def __init__(self, seed: int, ahead: int = 4) -> None:
        self.random, self.ahead = random.Random(seed), ahead

    def map_in_order(self, function: Callable[[Any], Any], items: Iterable[Any]) -> Iterator[Any]:
        waiting = iter(items)
        while batch := list(itertools.islice(waiting, self.ahead)):
            places = list(range(len(batch)))
            self.random.shuffle(places)
            results: dict[int, bytes] = {}
            for place in places:
                try:
                    made = function(pickle.loads(pickle.dumps(batch[place])))
                except FormatError as error:
                    made = error
                results[place] = pickle.dumps(made)
            for place in range(len(batch)):
                made = pickle.loads(results[place])
                if isinstance(made, FormatError):
                    raise made
                yield made


def outcome(root: Path, in_order: Any, sample: Sample | None = None) -> Any:
    """The report, or the offence's message and place."""
    try:
        if sample is not None:
            return verify_sample(root, sample, in_order=in_order)
        return verify(root, in_order=in_order)
    except VerifyError as error:
        return str(error), error.path, error.row_group


def shuffled(root: Path, sample: Sample | None = None) -> Any:
    """The outcome of several orders, which are one."""
    first, *others = (outcome(root, Shuffling(seed).map_in_order, sample) for seed in range(3))
    assert all(other == first for other in others)
    return first


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(content)


def copy_of(root: Path, to: Path) -> Path:
    return Path(shutil.copytree(root, to))


def listed(root: Path) -> list[str]:
    """The files of the set in the order in which they are checked."""
    return pq.read_table(root / "files.parquet").column("path").to_pylist()


def test_the_report_does_not_depend_on_where_and_when_units_run(built: Path) -> None:
    alone = verify(built)
    assert isinstance(alone, VerifyReport)
    assert len([name for name in listed(built) if name.startswith("plan/")]) > 8
    assert shuffled(built) == alone
    assert verify_set(built, lambda *_: None, LOCAL) == alone


def test_along_a_chain_too(chain: Path, tmp_path: Path) -> None:
    cut = tmp_path / "cut"
    fork(chain, 13, cut, QUIET)
    for root, kinds in ((chain, ["segment 0", "segment 1"]), (cut, ["segment 0"])):
        alone = verify(root)
        assert shuffled(root) == alone
        sampled = shuffled(root, Sample(share=0.3))
        assert [parts.kind for parts in sampled.sampled if "segment" in parts.kind] == kinds
        assert sampled.bytes < sampled.all_bytes == alone.bytes


@pytest.mark.parametrize("seed", range(4))
def test_of_several_damaged_files_the_first_one_listed_is_named(
    built: Path, tmp_path: Path, seed: int
) -> None:
    root, chosen = copy_of(built, tmp_path / "set"), random.Random(seed)
    names = [name for name in listed(root) if "/" in name]
    damaged = chosen.sample(names, 5)
    for name in damaged:
        flip(root / name)
    first = min(damaged, key=listed(root).index)
    found = shuffled(root)
    assert found == outcome(root, map)
    assert found[1] == str(root / first)


def test_of_several_damaged_store_parts_the_first_one_is_named(built: Path, tmp_path: Path) -> None:
    root = copy_of(built, tmp_path / "set")
    first, second = (sorted(root.glob(f"store/{name}-*/parts/*.tokens")) for name in
                     ("lines", "mixed"))  # fmt: skip
    for path in (*second[-2:], *first[-2:]):
        flip(path)
    found = shuffled(root)
    assert found == outcome(root, map)
    assert found[1] == str(first[-2])


def test_tables_of_all_stores_are_checked_before_their_parts(built: Path, tmp_path: Path) -> None:
    root = copy_of(built, tmp_path / "set")
    flip(next(root.glob("store/lines-*/parts/00000.tokens")))
    table = next(root.glob("store/mixed-*/lengths.u32"))
    flip(table)
    assert shuffled(root)[1] == outcome(root, map)[1] == str(table)


def of_part_1(column: str, more: int) -> Callable[[SetData], None]:
    def change(data: SetData) -> None:
        data.plan[1][column][2] += more

    return change


def wrong_steps(data: SetData) -> None:
    data.steps["tokens"][1] += 1


CONSISTENT_LIES = {
    "a row of each part": both(add("plan", "workload", 3), of_part_1("workload", 1)),
    "a shard's row before the next part's plan": both(
        put("shards", "num_targets", 9, 0), of_part_1("workload", 1)
    ),
    "the step table before the next part": both(wrong_steps, of_part_1("num_targets", 1)),
    "the next part's row, and the stream": both(
        add("plan", "position", 4, 1), of_part_1("workload", 1)
    ),
    "a gap in the stream": add("plan", "position", 4, 1),
    "a CP plan's row": add("cp", "predicted", 1, 0),
}


@pytest.mark.parametrize("lie", CONSISTENT_LIES)
def test_of_several_broken_laws_the_first_is_reported(lie: str, tmp_path: Path) -> None:
    data = make_set()
    CONSISTENT_LIES[lie](data)
    root = data.write(tmp_path / "set")
    found = outcome(root, map)
    assert not isinstance(found, VerifyReport)
    assert shuffled(root) == found


@pytest.mark.ray
def test_workers_of_ray_say_what_this_process_says(built: Path, tmp_path: Path) -> None:
    damaged = copy_of(built, tmp_path / "damaged")
    names = [name for name in listed(damaged) if "/" in name]
    for name in (names[-1], names[3], names[7]):
        flip(damaged / name)
    data = make_set()
    CONSISTENT_LIES["a row of each part"](data)
    lying = data.write(tmp_path / "lying")
    sample, scratch = Sample(share=0.3), tmp_path / "scratch"
    scratch.mkdir()
    with open_executor(TWO) as executor:
        assert executor.num_workers == 2
        report = verify_set(built, lambda *_: None, TWO, scratch=scratch)
        assert report == verify(built)
        sampled = verify_set(built, lambda *_: None, TWO, sample=sample, scratch=scratch)
        assert sampled == verify_sample(built, sample)
        for root in (damaged, lying):
            with pytest.raises(VerifyError) as caught:
                verify_set(root, lambda *_: None, TWO, scratch=scratch)
            assert (str(caught.value), caught.value.path, caught.value.row_group) == outcome(
                root, map
            )
    assert list(scratch.iterdir()) == []


def test_an_offence_is_the_same_after_it_went_from_process_to_process() -> None:
    for kind in (FormatError, VerifyError):
        error = kind("is missing", path="plan/00000.parquet", row_group=3)
        again = pickle.loads(pickle.dumps(error))
        assert type(again) is kind
        assert (str(again), again.path, again.row_group) == (str(error), error.path, 3)


def test_scratch_is_empty_afterwards_also_of_a_failure(built: Path, tmp_path: Path) -> None:
    root, scratch = copy_of(built, tmp_path / "set"), tmp_path / "scratch"
    scratch.mkdir()
    seen = set()

    def look(stage: str, done: int, total: int) -> None:
        seen.update(path.name.split("-")[0] for path in scratch.rglob("*") if path.is_file())

    verify_set(root, look, LOCAL, scratch=scratch)
    assert {"offsets", "part_starts", "stream", "documents"} <= seen
    assert list(scratch.iterdir()) == []

    def stop(stage: str, done: int, total: int) -> None:
        if stage == "stream":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        verify_set(root, stop, LOCAL, scratch=scratch)
    assert list(scratch.iterdir()) == []
    flip(root / "shards" / "00002.parquet")
    with pytest.raises(VerifyError):
        verify_set(root, look, LOCAL, scratch=scratch)
    assert list(scratch.iterdir()) == []


def test_records_of_a_part_are_taken_as_they_come(built: Path, tmp_path: Path) -> None:
    most = 0

    def look(stage: str, done: int, total: int) -> None:
        nonlocal most
        most = max(most, len(list(tmp_path.rglob("pieces-*"))))

    verify(built, progress=look, scratch=tmp_path, in_order=Shuffling(0, ahead=3).map_in_order)
    assert 0 < most <= 3


def test_small_sets_are_read_here_and_large_ones_by_workers(
    built: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings_for = verifying._small_or_large
    assert settings_for(built, 1.0).executor == "local"
    size = sum((built / name).stat().st_size for name in listed(built))
    monkeypatch.setattr(verifying, "ALONE_BYTES", size)
    assert settings_for(built, 1.0).executor == "ray"
    assert settings_for(built, 0.01).executor == "local"
    assert settings_of(None, None) is None
    assert settings_of(1, None) == JobSettings(executor="local", workers=1)
    assert settings_of(3, None) == JobSettings(workers=3)
    assert settings_of(1, "there:6379") == JobSettings(workers=1, address="there:6379")


def test_workers_of_a_cluster_need_a_scratch_that_all_see(
    built: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match="--scratch DIR"):
        verify_set(built, lambda *_: None, settings_of(None, "there:6379"))
    monkeypatch.setenv("RAY_ADDRESS", "there:6379")
    with pytest.raises(ConfigError, match="--scratch DIR"):
        verify_set(built, lambda *_: None, settings_of(2, None))
    verify_set(built, lambda *_: None)  # small: nothing asks for the cluster


class TestCommand:
    def test_a_sample_says_what_it_did_not_check(
        self, built: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert run("verify", str(built), "--sample", "0.2", "--seed", "3", "--quiet") == 0
        printed = " ".join(capsys.readouterr().out.split())
        assert "not checked: conservation: that every stream token is in exactly one" in printed
        assert "every law holds" not in printed
        assert "sampled: " in printed
        assert "of segment 0" in printed
        assert "of store lines" in printed

    def test_a_sample_as_json(self, built: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert run("verify", str(built), "--sample", "0.2", "--json", "--quiet") == 0
        document = json.loads(capsys.readouterr().out)
        assert document["share"] == 0.2
        assert {entry["kind"] for entry in document["sampled"]} == {
            "segment 0", "store lines", "store mixed",
        }  # fmt: skip
        assert document["not_checked"]
        assert 0 < document["chance"] < 1
        assert "laws" not in document

    @pytest.mark.parametrize("share", ["0", "1", "-0.5"])
    def test_a_share_that_is_none_is_refused(
        self, built: Path, share: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert run("verify", str(built), f"--sample={share}") == 2
        assert "must be above 0 and below 1" in capsys.readouterr().err

    def test_one_worker_is_this_process(
        self, built: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert run("verify", str(built), "--workers", "1", "--json", "--quiet") == 0
        assert json.loads(capsys.readouterr().out)["laws"] == list(LAWS)
