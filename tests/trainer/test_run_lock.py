"""One run at a time saves to a directory, and a run that was killed is in nobody's way."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.trainer import rank_jobs
from tests.trainer.ranks import run_ranks
from tests.trainer.small_sets import settings
from trainer.errors import TrainerError
from trainer.prepare import prepare
from trainer.run_lock import hold
from trainer.settings import parse_settings

ROOT = Path(__file__).parents[2]
HOLDS = """
import sys, time
from pathlib import Path
from trainer.run_lock import hold
lock = hold(Path(sys.argv[1]))
print("held", flush=True)
time.sleep(600)
"""


def tables(model: Path, directory: Path, dp_size: int = 1) -> dict[str, Any]:
    return settings(
        model,
        mesh={"dp_size": dp_size},
        run={"steps": 1},
        checkpoint={"directory": str(directory)},
    )


def test_a_second_run_is_refused_in_one_line_until_the_first_is_killed(
    tmp_path: Path, small_model: Path, small_set: Path
) -> None:
    other = subprocess.Popen(
        [sys.executable, "-c", HOLDS, str(tmp_path)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    chosen = parse_settings(tables(small_model, tmp_path))
    try:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        with pytest.raises(
            TrainerError,
            match=rf"another run \(process {other.pid} on .*\) saves .*; wait for it .* or name",
        ) as caught:
            prepare(chosen, small_set, {})
        assert "\n" not in str(caught.value)
    finally:
        other.send_signal(signal.SIGKILL)
        other.communicate()
    held = prepare(chosen, small_set, {}).lock
    assert held is not None
    assert held.warning == ""
    assert (tmp_path / "lock").read_text().startswith(f"process {os.getpid()} on ")


def test_only_rank_0_asks_for_the_directory(
    tmp_path: Path, small_model: Path, small_set: Path
) -> None:
    chosen = parse_settings(tables(small_model, tmp_path, dp_size=2))
    first = prepare(chosen, small_set, {"WORLD_SIZE": "2", "RANK": "0"})
    second = prepare(chosen, small_set, {"WORLD_SIZE": "2", "RANK": "1"})
    assert first.lock is not None
    assert second.lock is None


def test_a_run_that_has_ended_holds_nothing(tmp_path: Path) -> None:
    held = hold(tmp_path)
    with pytest.raises(TrainerError, match="another run"):
        hold(tmp_path)
    del held
    assert hold(tmp_path).warning == ""


def test_what_killed_runs_left_of_any_step_is_removed_and_told(
    tmp_path: Path, small_model: Path, small_set: Path
) -> None:
    left = [tmp_path / f"step-{step:08d}.partial" for step in (1, 7)]
    for path in left:
        path.mkdir()
        (path / "__9_0.distcp").write_text("of a tenth rank")
    chosen = tables(small_model, tmp_path)
    ((_, notes),) = run_ranks(1, rank_jobs.train_on, chosen, str(small_set), 1)
    assert notes[:2] == [f"{path}: a run ended while it wrote this; removed" for path in left]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["lock", "step-00000001"]


def test_ranks_that_find_different_checkpoints_are_all_told(
    tmp_path: Path, small_model: Path, small_set: Path
) -> None:
    chosen = tables(small_model, tmp_path, dp_size=2)
    said = run_ranks(2, rank_jobs.go_on_apart, chosen, str(small_set), 2)
    assert said[0] == said[1]
    assert "rank 0 would go on at step 0, rank 1 at step 1; give a checkpoint.directory" in said[0]
