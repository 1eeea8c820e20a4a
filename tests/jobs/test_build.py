"""The main job: the same bytes whatever happened on the way, and a set that verify believes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jobs import stages, tokenizing
from jobs.build import OtherConfiguration, build
from jobs.executor import LocalExecutor, RayExecutor
from jobs.tokenizing import find_corpora
from jobs.workplace import Workplace
from packer.clock import choose_order, even_step_times, step_times
from packer.orders import ORDERS
from packer.schedule import Schedule
from pipeline.config import JobSettings, RunConfig
from pipeline.planning.plan import PlanError
from pipeline.planning.plan_parts import read_plan_part
from pipeline.reading.listing import SourceError
from pipeline.report import report
from pipeline.settings.cluster import ParallelSettings
from pipeline.settings.documents import RejectSettings
from pipeline.shard.manifest import load_manifest
from pipeline.shard.reader import open_shards
from pipeline.state.lock import Busy, exclusive
from pipeline.stores.rejects import RejectsError
from pipeline.tokenizer.resolve import resolve_tokenizer
from pipeline.verify import verify
from tests.jobs.small_run import QUIET, DyingExecutor, build_with, digests, small_config


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
@pytest.mark.parametrize("workers", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_ray_with_any_number_of_workers_gives_the_same_bytes(
    config: RunConfig,
    built: Path,
    tmp_path: Path,
    workers: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stages, "ALONE_ROWS", 0)  # so that CP plans are made by workers too
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


def test_micro_batches_run_in_the_order_of_least_time(
    config: RunConfig, built: Path, tmp_path: Path
) -> None:
    schedule = Schedule(dp_size=1, pp_size=4)
    parallel = ParallelSettings(dp_size=1, pp_size=4)
    found = build(config.model_copy(update={"parallel": parallel}), tmp_path, QUIET, dry_run=True)
    steps = [read_plan_part(path) for path in sorted((tmp_path / "plan").iterdir())]
    work = np.concatenate([part.row_workload for part in steps]).reshape(-1, 4)
    times = {rule: int(step_times(work, schedule, order=rule).sum()) for rule in ORDERS}
    order = found.balance["micro_batch_order"]
    assert order == choose_order(times) != "identity"
    even = int(even_step_times(work.sum(axis=1), 4, schedule).sum()) / 256
    assert found.balance["schedule_time"] == pytest.approx(times[order] / even, rel=1e-12)
    manifest = load_manifest(built)
    assert manifest.micro_batch_order == manifest.balance["micro_batch_order"]


def test_a_given_order_is_taken_and_a_finished_set_keeps_its_own(
    config: RunConfig, tmp_path: Path
) -> None:
    packing = config.packing.model_copy(update={"policy": "wlb"})  # whose plan knows no cluster
    config = config.model_copy(update={"packing": packing})
    built = tmp_path / "built"
    build(config, built, QUIET)

    def asked(**changes: Any) -> RunConfig:
        return config.model_copy(update={"parallel": config.parallel.model_copy(update=changes)})

    build(asked(micro_batch_order="light_last_1"), tmp_path / "given", QUIET)
    reader = open_shards(tmp_path / "given")
    slots = [view.slot for view in reader.micro_batches(0, dp_rank=0, dp_size=1)]
    assert slots == [2, 1, 0, 3]
    verify(tmp_path / "given")
    order = load_manifest(built).micro_batch_order
    with pytest.raises(OtherConfiguration, match=rf"micro_batch_order = '{order}' to keep it"):
        build(asked(dp_size=4), built, QUIET)
    with pytest.raises(OtherConfiguration, match=rf"order '{order}', chosen for another"):
        build(asked(micro_batch_order="light_last_1"), built, QUIET)
    assert build(asked(dp_size=4, micro_batch_order=order), built, QUIET).finished


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


@pytest.mark.parametrize("policy", ["concat", "reorder", "wlb", "fixed_greedy"])
@pytest.mark.parametrize("max_pieces", [0, 3, 8])
def test_every_policy_builds_a_set_that_verify_believes(
    config: RunConfig, tmp_path: Path, policy: str, max_pieces: int
) -> None:
    settings = {
        "policy": policy,
        "max_pieces": max_pieces,
        "thresholds": "tune",
        "global_batches": 2,
    }
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
    with pytest.raises(RejectsError, match=r"'lines': 501 of 501 records.*500 missing_text"):
        build(config, tmp_path / "out", QUIET)
    config = config.model_copy(update={"rejects": RejectSettings(max_share=1)})
    with pytest.raises(PlanError, match=r"'lines' has no documents.*500 missing_text.*text_column"):
        build(config, tmp_path / "out", QUIET)


def test_a_directory_in_use_is_refused(config: RunConfig, tmp_path: Path) -> None:
    with exclusive(tmp_path / ".build"), pytest.raises(Busy):
        build(config, tmp_path, QUIET)


def test_a_result_inside_its_own_corpus_is_refused(tmp_path: Path) -> None:
    config = small_config(tmp_path / "corpus")
    source = config.sources[1].model_copy(update={"paths": (str(tmp_path / "corpus" / "tree"),)})
    config = config.model_copy(update={"sources": (source,)})
    out = tmp_path / "corpus" / "tree" / "out"
    build(config, out, QUIET, dry_run=True)
    with pytest.raises(SourceError, match="where the result goes"):
        build(config, out, QUIET)


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


def test_two_jobs_do_not_make_one_store_at_once(config: RunConfig, tmp_path: Path) -> None:
    identity = resolve_tokenizer(config.tokenizer)
    corpus = find_corpora(config, identity, Workplace.of(tmp_path, config.job))[0]
    lock = corpus.directory.parent / ".build" / corpus.directory.name
    with exclusive(lock), pytest.raises(Busy):
        build(config, tmp_path, QUIET)


def test_ray_is_not_needed_to_map(tmp_path: Path) -> None:
    arguments = [(number,) for number in range(5)]
    assert sorted(LocalExecutor().map(abs, arguments)) == [(i, i) for i in range(5)]
    assert RayExecutor(2).num_workers == 2
