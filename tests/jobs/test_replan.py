"""New CP plans join a finished set at one moment, and sign nothing that is damaged."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from jobs import replan as replan_module
from jobs import stages
from jobs.build import OtherConfiguration, build
from jobs.executor import LocalExecutor
from jobs.faults import GOES_ON, Advice
from jobs.replan import replan
from pipeline.config import JobSettings, RunConfig
from pipeline.planning.plan import PlanError
from pipeline.report import report
from pipeline.settings.context_parallel import ContextParallelSettings
from pipeline.shard.manifest import load_manifest
from pipeline.shard.tables import FormatError
from pipeline.verify import verify
from tests.jobs.small_run import QUIET, DyingExecutor, digests

LOCAL = JobSettings(executor="local")


def test_replan_adds_degrees_and_touches_nothing_else(
    config: RunConfig, built: Path, tmp_path: Path
) -> None:
    build(config, tmp_path, QUIET)
    replan(tmp_path, (3, 8, 3), "per_sequence", QUIET, LOCAL)
    verify(tmp_path)
    before, after = digests(built), digests(tmp_path)
    changed = {name for name in before if before[name] != after[name]}
    assert changed == {"manifest.json", "manifest.sha256", "files.parquet", "row_groups.parquet"}
    added = {name.split("/")[0] for name in set(after) - set(before)}
    assert added == {"cp=3", "cp=8"}
    assert set(report(tmp_path)["cp"]) == {"2", "3", "4", "8"}
    more = config.context_parallel.model_copy(update={"sizes": (3,), "strategy": "per_sequence"})
    assert build(config.model_copy(update={"context_parallel": more}), tmp_path, QUIET).finished
    dear = more.model_copy(update={"kv_exchange": 0.5})
    with pytest.raises(
        OtherConfiguration, match=r"differs in context_parallel; run `steelyard rep"
    ):
        build(config.model_copy(update={"context_parallel": dear}), tmp_path, QUIET)


def test_what_is_not_given_is_as_the_set_was_built(config: RunConfig, tmp_path: Path) -> None:
    given = {"strategy": "adaptive", "candidates": ["per_document", "mixed"], "kv_exchange": 0.5}
    settings = ContextParallelSettings.model_validate(given | {"throughput": "flat"})
    build(config.model_copy(update={"context_parallel": settings}), tmp_path, QUIET)
    replan(tmp_path, (2,), None, QUIET, LOCAL)
    replan(tmp_path, (3,), "mixed", QUIET, LOCAL, kv_exchange=0.25)
    replan(tmp_path, (4,), "per_document_aligned", QUIET, LOCAL)
    verify(tmp_path)
    found = load_manifest(tmp_path).cp
    two, three, four = (found[degree] for degree in "234")
    assert two["candidates"] == ["per_document", "mixed"]
    assert list(two["chosen"]) == ["mixed", "per_document"]  # JSON keys are sorted
    assert [entry["kv_exchange"] for entry in (two, three, four)] == [0.5, 0.25, 0.5]
    assert [entry["strategy"] for entry in (three, four)] == ["mixed", "per_document_aligned"]
    assert all(entry["throughput"] == "flat" for entry in (two, three, four))
    assert "candidates" not in three


def test_a_set_is_padded_where_memory_allows_it(config: RunConfig, tmp_path: Path) -> None:
    narrow = config.context_parallel.model_copy(
        update={"sizes": (4,), "strategy": "padded_head_tail", "pad_to": 6}
    )
    config = config.model_copy(update={"context_parallel": narrow})
    with pytest.raises(
        PlanError, match=r"cp 4: \d+ of \d+ micro-batches exceed max_tokens 640 once"
    ):
        build(config, tmp_path / "narrow", QUIET)
    assert not any((tmp_path / "narrow").glob("cp=*"))
    assert not any((tmp_path / "narrow").glob("shards/*"))
    wide = config.packing.model_copy(update={"policy": "reorder", "max_tokens": 5_000})
    build(config.model_copy(update={"packing": wide}), tmp_path / "wide", QUIET)
    verify(tmp_path / "wide")
    assert load_manifest(tmp_path / "wide").pad_multiple(4) == 24
    before = digests(tmp_path / "wide")
    with pytest.raises(PlanError, match=r"padded to multiples of 4096; the largest has \d+"):
        replan(tmp_path / "wide", (4,), None, QUIET, LOCAL, pad_to=4096)
    assert digests(tmp_path / "wide") == before


def test_a_replan_killed_anywhere_leaves_the_set_as_it_was_or_finished(
    config: RunConfig, built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build(config, tmp_path, QUIET)
    given: list[Advice] = []

    def replan_with(executor: Any, degrees: tuple[int, ...], strategy: str) -> None:
        def opened(_: JobSettings, advice: Advice) -> nullcontext[Any]:
            given.append(advice)
            return nullcontext(executor)

        with monkeypatch.context() as patch:
            patch.setattr(stages, "ALONE_ROWS", 0)
            patch.setattr(replan_module, "open_executor", opened)
            replan(tmp_path, degrees, strategy, QUIET)

    for tasks in (0, 2):
        with pytest.raises(KeyboardInterrupt):
            replan_with(DyingExecutor(tasks), (2,), "per_sequence")
        verify(tmp_path)
        assert digests(tmp_path) == digests(built)
    replan_with(LocalExecutor(), (5,), "per_document")  # takes nothing from the one that died
    verify(tmp_path)
    assert digests(tmp_path)["cp=2/00000.parquet"] == digests(built)["cp=2/00000.parquet"]
    assert {advice.again for advice in given} == {GOES_ON.again}
    assert "job.workers" not in given[0].memory  # it has no such option


def test_replan_does_not_sign_damaged_indexes(config: RunConfig, tmp_path: Path) -> None:
    build(config, tmp_path, QUIET)
    path = tmp_path / "row_groups.parquet"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(FormatError, match=r"row_groups\.parquet"):
        replan(tmp_path, (3,), "per_document", QUIET, LOCAL)
