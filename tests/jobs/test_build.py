"""The main job: the same bytes whatever happened on the way, and a set that verify believes."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from jobs import build as build_module
from jobs import replan as replan_module
from jobs import tokenizing
from jobs.build import OtherConfiguration, build
from jobs.executor import LocalExecutor, RayExecutor
from jobs.progress import Reporter
from jobs.replan import replan
from jobs.tokenizing import find_corpora
from pipeline.config import JobSettings, RunConfig
from pipeline.lock import Busy, exclusive
from pipeline.planning import PlanError
from pipeline.report import report
from pipeline.shard.tables import FormatError
from pipeline.shard.token_store import StoreError
from pipeline.sources import SourceError
from pipeline.tokenizer import resolve_tokenizer
from pipeline.verify import VerifyError, verify
from tests.jobs.small_run import small_config

QUIET = Reporter(quiet=True)


def digests(root: Path) -> dict[str, str]:
    """SHA-256 of every file of a set; its working state aside."""
    return {
        path.relative_to(root).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(root.rglob("*"))
        if path.is_file() and ".build" not in path.relative_to(root).parts
    }


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> RunConfig:
    return small_config(tmp_path_factory.mktemp("corpus"))


@pytest.fixture(scope="module")
def built(config: RunConfig, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An undisturbed build."""
    root = tmp_path_factory.mktemp("built")
    assert build(config, root, QUIET).finished
    return root


class DyingExecutor(LocalExecutor):
    """Dies after so many tasks, in the middle of the next one's recording."""

    def __init__(self, tasks: int) -> None:
        self.left = tasks

    def map(self, function: Any, arguments: Sequence[tuple[Any, ...]]) -> Iterator[tuple[int, Any]]:
        for item in super().map(function, arguments):
            if not self.left:
                raise KeyboardInterrupt
            self.left -= 1
            yield item


def build_with(
    executor: Any, config: RunConfig, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(build_module, "open_executor", lambda _: nullcontext(executor))
        build(config, root, QUIET)


def test_verify_believes_what_build_wrote(built: Path) -> None:
    verify(built)


def test_several_parts_sources_runs_and_cuts_did_occur(built: Path) -> None:
    names = digests(built)
    assert sum(name.startswith("shards/") for name in names) >= 3
    assert sum(name.startswith("store/") and name.endswith(".tokens") for name in names) >= 6
    figures = report(built)
    assert figures["cut_documents"] > 0
    assert figures["steps"] >= 8
    assert sum(figures["rejected"].values()) == 2


def test_a_build_killed_anywhere_and_run_again_ends_the_same(
    config: RunConfig, built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deaths = 0
    for tasks in range(0, 100, 3):
        try:
            build_with(DyingExecutor(tasks), config, tmp_path, monkeypatch)
            break
        except KeyboardInterrupt:
            deaths += 1
            assert not (tmp_path / "manifest.json").exists()
    assert deaths >= 3
    assert digests(tmp_path) == digests(built)


def test_a_part_lost_before_the_set_was_finished_is_made_again(
    config: RunConfig, built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks = 0
    while not (tmp_path / "shards" / "00001.parquet").exists():
        with pytest.raises(KeyboardInterrupt):
            build_with(DyingExecutor(tasks), config, tmp_path, monkeypatch)
        tasks += 1
    (tmp_path / "shards" / "00000.parquet").unlink()
    (tmp_path / "plan" / "00000.parquet").write_bytes(b"short")
    build(config, tmp_path, QUIET)
    assert digests(tmp_path) == digests(built)


@pytest.mark.ray
@pytest.mark.parametrize("workers", [1, 2])
def test_ray_with_any_number_of_workers_gives_the_same_bytes(
    config: RunConfig, built: Path, tmp_path: Path, workers: int
) -> None:
    settings = JobSettings(executor="ray", workers=workers, object_store_mb=100)
    build(config.model_copy(update={"job": settings}), tmp_path, QUIET)
    assert digests(tmp_path) == digests(built)


def test_a_finished_set_is_left_alone(config: RunConfig, built: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in built.rglob("*.parquet")}
    assert build(config, built, QUIET).finished
    assert before == {path: path.stat().st_mtime_ns for path in built.rglob("*.parquet")}


def test_a_finished_set_of_another_configuration_is_refused(config: RunConfig, built: Path) -> None:
    packing = config.packing.model_copy(update={"num_micro_batches": 2})
    with pytest.raises(OtherConfiguration, match=r"differs in plan.*another --out"):
        build(config.model_copy(update={"packing": packing}), built, QUIET)
    degrees = config.context_parallel.model_copy(update={"sizes": (3,)})
    with pytest.raises(OtherConfiguration, match=r"context_parallel.*steelyard replan"):
        build(config.model_copy(update={"context_parallel": degrees}), built, QUIET)


def test_a_dry_run_plans_and_publishes_nothing(
    config: RunConfig, built: Path, tmp_path: Path
) -> None:
    result = build(config, tmp_path, QUIET, dry_run=True)
    assert not result.finished
    assert result.plan["totals"]["steps"] == report(built)["steps"]
    assert not (tmp_path / "manifest.json").exists()
    assert not (tmp_path / "shards").exists()
    build(config, tmp_path, QUIET)  # and the real run goes on from it
    assert digests(tmp_path) == digests(built)


def test_another_plan_never_tokenizes_again_and_another_tokenizer_always_does(
    config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = config.shards.model_copy(update={"store": str(tmp_path / "store")})
    config = config.model_copy(update={"shards": shared})
    build(config, tmp_path / "first", QUIET, dry_run=True)
    stores = set((tmp_path / "store").iterdir())
    packing = config.packing.model_copy(update={"num_micro_batches": 2, "policy": "reorder"})
    with monkeypatch.context() as patch:
        patch.setattr(tokenizing, "tokenize_split", None)  # would fail if it were called
        build(config.model_copy(update={"packing": packing}), tmp_path / "second", QUIET)
    verify(tmp_path / "second")
    assert set((tmp_path / "store").iterdir()) == stores
    tokenizer = config.tokenizer.model_copy(update={"add_eos": False})
    build(
        config.model_copy(update={"tokenizer": tokenizer}), tmp_path / "third", QUIET, dry_run=True
    )
    assert len(set((tmp_path / "store").iterdir()) - stores) == len(config.sources)


def test_a_changed_input_is_noticed_though_its_path_is_the_same(tmp_path: Path) -> None:
    config = small_config(tmp_path / "corpus")
    build(config, tmp_path / "out", QUIET, dry_run=True)
    first = set((tmp_path / "out" / "store").iterdir())
    path = Path(config.sources[0].paths[0])
    path.write_bytes(path.read_bytes().replace(b"a", b"b", 1))
    build(config, tmp_path / "out", QUIET)
    assert len(set((tmp_path / "out" / "store").iterdir()) - first) == 1
    verify(tmp_path / "out")


def test_leftovers_of_an_unfinished_build_with_other_settings_are_removed(
    config: RunConfig, built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = config.shards.model_copy(update={"shard_tokens": config.shards.shard_tokens // 4})
    other = config.model_copy(update={"shards": small})
    build(other, tmp_path, QUIET, dry_run=True)
    assert len(list((tmp_path / "plan").iterdir())) > len(list((built / "plan").iterdir()))
    build(config, tmp_path, QUIET)
    assert {name for name in digests(tmp_path) if name.startswith("plan/")} == {
        name for name in digests(built) if name.startswith("plan/")
    }
    verify(tmp_path)


@pytest.mark.parametrize("policy", ["concat", "reorder", "wlb"])
@pytest.mark.parametrize("max_pieces", [0, 3, 8])
def test_every_policy_builds_a_set_that_verify_believes(
    config: RunConfig, tmp_path: Path, policy: str, max_pieces: int
) -> None:
    settings = {"policy": policy, "max_pieces": max_pieces, "thresholds": "tune"}
    packing = config.packing.model_copy(update=settings)
    build(config.model_copy(update={"packing": packing}), tmp_path, QUIET)
    verify(tmp_path)


def test_epochs_weights_and_a_target_are_kept(tmp_path: Path) -> None:
    config = small_config(tmp_path / "corpus")
    weighted = tuple(
        source.model_copy(update={"weight": weight, "max_epochs": 5})
        for source, weight in zip(config.sources, (0.25, 0.75), strict=True)
    )
    mixture = config.mixture.model_copy(update={"target_tokens": 60_000})
    config = config.model_copy(update={"sources": weighted, "mixture": mixture})
    build(config, tmp_path / "out", QUIET)
    verify(tmp_path / "out")
    figures = report(tmp_path / "out")
    assert 59_000 < figures["stream_tokens"] <= 60_000


def test_too_small_a_corpus_is_refused_with_advice(config: RunConfig, tmp_path: Path) -> None:
    packing = config.packing.model_copy(update={"num_micro_batches": 4096})
    with pytest.raises(PlanError, match=r"less than one step.*lower packing.num_micro_batches"):
        build(config.model_copy(update={"packing": packing}), tmp_path, QUIET)


def test_a_source_without_documents_is_refused_and_says_why(tmp_path: Path) -> None:
    config = small_config(tmp_path / "corpus")
    source = config.sources[0].model_copy(update={"text_column": "body"})
    config = config.model_copy(update={"sources": (source, config.sources[1])})
    with pytest.raises(PlanError, match=r"'lines' has no documents.*500 missing_text.*text_column"):
        build(config, tmp_path / "out", QUIET)


def test_lengths_that_were_changed_are_not_planned_with(config: RunConfig, tmp_path: Path) -> None:
    build(config, tmp_path, QUIET, dry_run=True)
    lengths = next(tmp_path.glob("store/*/lengths.u32"))
    content = bytearray(lengths.read_bytes())
    content[0] ^= 1
    lengths.write_bytes(content)
    with pytest.raises(StoreError, match=r"lengths\.u32"):
        build(config, tmp_path, QUIET)


def test_a_directory_in_use_is_refused(config: RunConfig, tmp_path: Path) -> None:
    with exclusive(tmp_path / ".build"), pytest.raises(Busy):
        build(config, tmp_path, QUIET)


def test_replan_adds_degrees_and_touches_nothing_else(
    config: RunConfig, built: Path, tmp_path: Path
) -> None:
    build(config, tmp_path, QUIET)
    replan(tmp_path, (3, 8, 3), "per_sequence", QUIET, JobSettings(executor="local"))
    verify(tmp_path)
    before, after = digests(built), digests(tmp_path)
    changed = {name for name in before if before[name] != after[name]}
    assert changed == {"manifest.json", "manifest.sha256", "files.parquet", "row_groups.parquet"}
    added = {name.split("/")[0] for name in set(after) - set(before)}
    assert added == {"cp=3", "cp=8"}
    assert set(report(tmp_path)["cp"]) == {"2", "3", "4", "8"}
    more = config.context_parallel.model_copy(update={"sizes": (3,), "strategy": "per_sequence"})
    assert build(config.model_copy(update={"context_parallel": more}), tmp_path, QUIET).finished


def test_a_replan_killed_anywhere_leaves_the_set_as_it_was_or_finished(
    config: RunConfig, built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build(config, tmp_path, QUIET)

    def replan_with(executor: Any, degrees: tuple[int, ...], strategy: str) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(replan_module, "open_executor", lambda _: nullcontext(executor))
            replan(tmp_path, degrees, strategy, QUIET)

    for tasks in (0, 2):
        with pytest.raises(KeyboardInterrupt):
            replan_with(DyingExecutor(tasks), (2,), "per_sequence")
        verify(tmp_path)
        assert digests(tmp_path) == digests(built)
    replan_with(LocalExecutor(), (5,), "per_document")  # takes nothing from the one that died
    verify(tmp_path)
    assert digests(tmp_path)["cp=2/00000.parquet"] == digests(built)["cp=2/00000.parquet"]


def test_replan_does_not_sign_damaged_indexes(config: RunConfig, tmp_path: Path) -> None:
    build(config, tmp_path, QUIET)
    path = tmp_path / "row_groups.parquet"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(FormatError, match=r"row_groups\.parquet"):
        replan(tmp_path, (3,), "per_document", QUIET, JobSettings(executor="local"))


def test_a_file_that_went_missing_is_named_and_the_way_out(
    config: RunConfig, tmp_path: Path
) -> None:
    build(config, tmp_path, QUIET)
    (tmp_path / "shards" / "00001.parquet").unlink()
    with pytest.raises(FormatError, match=r"shards/00001\.parquet.*remove manifest\.json"):
        build(config, tmp_path, QUIET)


def test_a_result_inside_its_own_corpus_is_refused(tmp_path: Path) -> None:
    config = small_config(tmp_path / "corpus")
    source = config.sources[1].model_copy(update={"paths": (str(tmp_path / "corpus" / "tree"),)})
    config = config.model_copy(update={"sources": (source,)})
    out = tmp_path / "corpus" / "tree" / "out"
    build(config, out, QUIET, dry_run=True)
    with pytest.raises(SourceError, match="where the result goes"):
        build(config, out, QUIET)


def test_a_flipped_bit_is_found_in_every_file(config: RunConfig, tmp_path: Path) -> None:
    sizes = {"shard_tokens": 40_000, "split_bytes": 120_000}  # fewer parts, the same kinds
    shards = config.shards.model_copy(update=sizes)
    build(config.model_copy(update={"shards": shards}), tmp_path, QUIET)
    files = [tmp_path / name for name in digests(tmp_path)]
    assert len(files) > 25
    for path in files:
        content = path.read_bytes()
        if not content:
            continue
        damaged = bytearray(content)
        damaged[len(content) // 2] ^= 4
        path.write_bytes(damaged)
        with pytest.raises(VerifyError) as caught:
            verify(tmp_path)
        name = path.relative_to(tmp_path).as_posix()
        # the manifest and its digest vouch for one another: either may be the damaged one
        assert name in str(caught.value) or "manifest" in name
        if name.startswith(("shards/", "plan/", "cp=")):
            assert "row group" in str(caught.value) or "footer" in str(caught.value)
        path.write_bytes(content)
    verify(tmp_path)


@pytest.mark.parametrize(
    "name", ["plan/00001.parquet", "cp=4/00000.parquet", "store/*/lengths.u32", "steps.parquet"]
)
def test_report_does_not_measure_damage(config: RunConfig, tmp_path: Path, name: str) -> None:
    build(config, tmp_path, QUIET)
    path = next(tmp_path.glob(name))
    content = bytearray(path.read_bytes())
    content[len(content) // 3] ^= 16
    path.write_bytes(content)
    with pytest.raises((FormatError, StoreError), match=path.name):
        report(tmp_path)


@pytest.mark.parametrize(
    "lost", [".build/inverse", "steps.parquet", "tail.parquet", ".build/inputs-lines.json"]
)
def test_what_is_lost_between_two_runs_is_made_again(
    config: RunConfig, built: Path, tmp_path: Path, lost: str
) -> None:
    build(config, tmp_path, QUIET, dry_run=True)
    path = tmp_path / lost
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.write_bytes(b"{")
    build(config, tmp_path, QUIET)
    assert digests(tmp_path) == digests(built)


def test_settings_that_come_back_never_meet_what_others_left(
    config: RunConfig, built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mixture = config.mixture.model_copy(update={"seed": 5})
    other = config.model_copy(update={"mixture": mixture})
    runs = config.shards.model_copy(update={"run_tokens": 50_000})
    for tasks, changed in ((25, config), (3, other), (5, other)):
        with pytest.raises(KeyboardInterrupt):
            build_with(DyingExecutor(tasks), changed, tmp_path, monkeypatch)
    build(config.model_copy(update={"shards": runs}), tmp_path, QUIET, dry_run=True)
    build(config, tmp_path, QUIET)
    assert digests(tmp_path) == digests(built)


def test_a_store_damaged_before_the_tokens_move_stops_the_move(
    config: RunConfig, tmp_path: Path
) -> None:
    build(config, tmp_path, QUIET, dry_run=True)
    path = next(tmp_path.glob("store/*/parts/00001.tokens"))
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(StoreError, match=r"00001\.tokens: block 0"):
        build(config, tmp_path, QUIET)


def test_files_of_others_in_the_directory_are_left_alone(
    config: RunConfig, built: Path, tmp_path: Path
) -> None:
    for folder in ("plan", "shards", "cp=9"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "notes.md").write_text("mine")
    (tmp_path / "plan" / "99999.parquet").write_text("left by an earlier try")
    build(config, tmp_path, QUIET)
    kept = {name: digest for name, digest in digests(tmp_path).items() if "notes" not in name}
    assert kept == digests(built)
    assert (tmp_path / "cp=9" / "notes.md").read_text() == "mine"


def test_a_file_that_changes_while_it_is_read_stops_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = small_config(tmp_path / "corpus")

    class Meddling(LocalExecutor):
        def map(self, function: Any, arguments: Any) -> Iterator[tuple[int, Any]]:
            yield from super().map(function, arguments)
            with Path(config.sources[0].paths[0]).open("a") as file:
                file.write("\n")

    with pytest.raises(SourceError, match="changed while it was read"):
        build_with(Meddling(), config, tmp_path / "out", monkeypatch)


def test_two_jobs_do_not_make_one_store_at_once(config: RunConfig, tmp_path: Path) -> None:
    identity = resolve_tokenizer(config.tokenizer)
    corpus = find_corpora(config, identity, tmp_path)[0]
    lock = corpus.directory.parent / ".build" / corpus.directory.name
    with exclusive(lock), pytest.raises(Busy):
        build(config, tmp_path, QUIET)


def test_ray_is_not_needed_to_map(tmp_path: Path) -> None:
    arguments = [(number,) for number in range(5)]
    assert sorted(LocalExecutor().map(abs, arguments)) == [(i, i) for i in range(5)]
    assert RayExecutor(2).num_workers == 2
