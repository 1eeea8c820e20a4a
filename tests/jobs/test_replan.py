"""New CP plans join a finished set at one moment, and sign nothing that is damaged."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from jobs import replan as replan_module
from jobs.build import build
from jobs.executor import LocalExecutor
from jobs.replan import replan
from pipeline.config import JobSettings, RunConfig
from pipeline.report import report
from pipeline.shard.tables import FormatError
from pipeline.verify import verify
from tests.jobs.small_run import QUIET, DyingExecutor, digests


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
