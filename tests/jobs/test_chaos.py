"""A build survives: kills, flips, damage, and input that nobody should have written."""

from __future__ import annotations

import io
import json
import os
import pickle
import shutil
import signal
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rich.console import Console

from jobs import extend as extend_module
from jobs.chaos import bombs, damage, environment, flips, fuzz, kills, result, workers
from jobs.chaos.chains import undisturbed_extension, undisturbed_fork
from jobs.chaos.result import Case
from jobs.chaos.runs import in_place, lost_units, receipts
from jobs.chaos.small_set import SmallSet, WrongToken, meet
from jobs.chaos.undisturbed import undisturbed_build
from jobs.chaos.witness import Witness, content_of
from jobs.cli import exit_status
from jobs.executor import ClusterError, LocalExecutor, open_executor
from jobs.extend import extend
from pipeline.config import JobSettings, RunConfig
from pipeline.reading.listing import SourceError
from pipeline.shard.tables import FormatError
from tests.jobs.small_run import QUIET, DyingExecutor, build_with, digests


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> SmallSet:
    return SmallSet(tmp_path_factory.mktemp("small"))


def unheld(cases: Iterator[Case]) -> list[str]:
    tried = list(cases)
    assert tried
    return [f"{case.fault}: {case.done}: {case.seen}" for case in tried if not case.held]


def test_a_flipped_bit_in_some_files_is_found_and_never_read(small: SmallSet) -> None:
    files = [path for path in small.files if path.stat().st_size][::4]
    tried = (flips.flip_one(small, path, path.stat().st_size // 2, 3) for path in files)
    assert unheld(tried) == []


@pytest.mark.slow
def test_a_flipped_bit_in_any_file_is_found_and_never_read(small: SmallSet) -> None:
    assert unheld(flips.flip_bits(small, 0, seed=1)) == []


def test_a_reader_that_gave_another_token_would_be_noticed(small: SmallSet) -> None:
    place = next(iter(small.truth))
    tokens, labels = small.truth[place]
    small.truth[place] = tokens ^ 1, labels
    try:
        assert [met.line for met in small.read()] == [
            f"steelyard: {WrongToken('step 0, slot 0')!r}"
        ] * 2
    finally:
        small.truth[place] = tokens, labels


@pytest.mark.slow
def test_damage_of_every_kind_is_named(small: SmallSet, tmp_path: Path) -> None:
    assert unheld(damage.damage(small, SmallSet(tmp_path, seed=9))) == []


def test_a_manifest_of_a_newer_version_is_refused_with_advice(small: SmallSet) -> None:
    with damage.edited(small.root, lambda document: document.update(version=2)):
        met = small.verified()
    assert met.status == 1
    assert "use a newer steelyard" in met.line


@pytest.mark.parametrize("kind", ["fuzz_configs", "fuzz_records", "fuzz_manifests"])
def test_what_is_fuzzed_is_taken_or_refused_in_a_line(
    kind: str, small: SmallSet, tmp_path: Path
) -> None:
    room = () if kind == "fuzz_manifests" else (tmp_path,)
    assert unheld(getattr(fuzz, kind)(small, 40, 2, *room)) == []


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(values=st.dictionaries(
    st.sampled_from(["version", "dtype", "sources", "segments", "cp", "workload", "digests",
                     "rows_per_group", "micro_batch_order", "tokenizer", "totals"]),
    st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
                 lambda inner: st.lists(inner, max_size=3)
                 | st.dictionaries(st.text(max_size=5), inner, max_size=3), max_leaves=5),
    min_size=1, max_size=3,
))  # fmt: skip
def test_any_value_of_any_manifest_field_is_taken_or_refused(
    values: dict[str, Any], small: SmallSet
) -> None:
    with damage.edited(small.root, lambda document: document.update(values)):
        assert small.verified().status in (0, 1, 2)


def test_a_small_file_that_expands_beyond_the_longest_line_is_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = "from pipeline.reading.records import lines, outcome\n"
    limit += "lines.MAX_LINE_BYTES, outcome.MAX_TEXT_BYTES = 1 << 23, 1 << 22\n"
    monkeypatch.setattr(bombs, "_READ", limit + bombs._READ)
    monkeypatch.setattr(bombs, "_BLOCK", 1 << 22)
    assert unheld(bombs.bombs(tmp_path, line_bytes=1 << 24)) == []


def test_units_without_a_receipt_or_a_note_are_counted_as_lost(
    small: SmallSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(KeyboardInterrupt):
        build_with(DyingExecutor(4), small.config, tmp_path, monkeypatch)
    done = {"ids/00000", "ids/00001", "repeats/0", "00000", "00001"}
    assert {unit for _, unit in receipts(tmp_path)} == done
    assert lost_units(tmp_path, 0) == []
    (note,) = tmp_path.glob("store/*/ledger.notes/*")
    assert note.name == "00001.json"  # its receipt never came
    note.unlink()
    assert {unit for _, unit in receipts(tmp_path)} == done - {"00001"}
    assert lost_units(tmp_path, 0) == ["00001"]
    build_with(LocalExecutor(), small.config, tmp_path, monkeypatch)
    assert digests(tmp_path) == digests(small.root)


def test_parts_that_wait_to_join_a_set_are_counted_under_the_names_they_will_have(
    before: Path, chain: Path, second: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = shutil.copytree(before, tmp_path / "set")
    given = in_place(out).keys()
    executor = DyingExecutor(9)  # in the middle of assembling shards
    with monkeypatch.context() as patch:
        patch.setattr(extend_module, "open_executor", lambda _: nullcontext(executor))
        with pytest.raises(KeyboardInterrupt):
            extend(second, out, QUIET)
    shards = {path: mark for path, mark in in_place(out).items() if path.parent.name == "shards"}
    new = shards.keys() - given
    assert {unit for _, unit in receipts(out) if unit.startswith("shard/")} == {
        f"shard/{int(path.stem)}" for path in new
    }
    assert new
    assert not any(path.exists() for path in new)
    extend(second, out, QUIET)
    assert shards.items() <= in_place(out).items()  # moved, not made again
    assert digests(out) == digests(chain)


def test_a_reader_that_gave_neither_set_would_be_noticed(before: Path, tmp_path: Path) -> None:
    out = shutil.copytree(before, tmp_path / "set")
    was = content_of(out)
    assert content_of(tmp_path) is None
    assert Witness(out, {was}).fault() == ""
    assert Witness(tmp_path, {was, None}).fault() == ""
    assert Witness(out, {None}).fault() == "a reader gave neither what was there nor what comes"
    witness = Witness(out, {was})
    (out / "steps.parquet").write_bytes(b"")
    assert witness.fault().startswith(f"a reader met: {out}/steps.parquet")


def test_forks_that_are_killed_end_the_same(chain: Path, tmp_path: Path) -> None:
    whole = undisturbed_fork(tmp_path, chain)
    assert unheld(kills.kill_drivers(whole, 1, seed=0)) == []


@pytest.mark.slow
def test_extensions_that_are_killed_end_the_same(tmp_path: Path) -> None:
    whole = undisturbed_extension(tmp_path, documents=100, executor="local")
    assert unheld(kills.kill_drivers(whole, 3, seed=0)) == []


def test_a_file_changed_and_changed_back_between_two_runs_leaves_no_trace(
    small: SmallSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = Path(small.config.sources[0].paths[0])
    content, times = path.read_bytes(), path.stat()

    class Changes(LocalExecutor):
        """The file is another one, as long as the first, when the workers read it."""

        def map(self, function: Any, arguments: Any) -> Iterator[tuple[int, Any]]:
            path.write_bytes(content.replace(b"heavy", b"HEAVY"))
            return super().map(function, arguments)

    with pytest.raises(SourceError, match=r"changed while it was read: .*lines\.jsonl"):
        build_with(Changes(), small.config, tmp_path, monkeypatch)
    path.write_bytes(content)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    build_with(LocalExecutor(), small.config, tmp_path, monkeypatch)
    assert digests(tmp_path) == digests(small.root)


def test_an_error_of_the_format_comes_from_another_process_as_it_was() -> None:
    error = FormatError("is damaged", path="a", row_group=3)
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.path, again.row_group) == (str(error), "a", 3)
    assert exit_status(again) == 2


def test_the_table_says_what_did_not_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    text = io.StringIO()
    monkeypatch.setattr(result, "Console", lambda **_: Console(file=text, width=120))
    cases = [
        Case(fault="bit flipped", done="a, byte 3", held=True, figures={"most MB": 3, "kept": 2}),
        Case(fault="bit flipped", done="b, byte 1", held=False, seen="verify found nothing",
             figures={"most MB": 7, "kept": 2}),
    ]  # fmt: skip
    result.show(cases)
    assert "│ bit flipped │     2 │    1 │ 7 most MB, 4 kept │" in text.getvalue()
    assert "bit flipped: b, byte 1: verify found nothing" in text.getvalue()
    assert json.loads(cases[0].as_json())["held"] is True


def dies(number: int) -> int:
    os.kill(os.getpid(), signal.SIGKILL)
    return number


@pytest.mark.ray
@pytest.mark.slow
def test_a_worker_that_always_dies_is_one_clear_line() -> None:
    with (
        open_executor(JobSettings(executor="ray", workers=1, object_store_mb=80)) as executor,
        pytest.raises(ClusterError, match=r"died 4 times at one task.*run the same command again"),
    ):
        list(executor.map(dies, [(1,)]))
    assert meet(lambda: (_ for _ in ()).throw(ClusterError("x"))).status == 2


@pytest.mark.slow
@pytest.mark.ray
def test_killed_drivers_and_workers_leave_the_same_set(tmp_path: Path) -> None:
    whole = undisturbed_build(tmp_path, documents=200)
    assert unheld(kills.kill_drivers(whole, 2, seed=0)) == []
    assert unheld(workers.kill_workers(whole, 2, seed=0)) == []


@pytest.mark.slow
def test_a_build_outlives_what_befalls_its_surroundings(tmp_path: Path) -> None:
    assert unheld(environment.faults(tmp_path)) == []
