"""The command: what it prints, and mistakes in one line, however many ranks find them."""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from pipeline.shard.reader import open_shards
from tests import fixture_set
from tests.fixture_contents import VOCABULARY, N
from tests.fixture_files import byte_ranges
from tests.trainer.small_sets import write_model
from trainer import last_words, launch, train

ROOT = Path(__file__).parents[2]


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", *command],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


def config_file(directory: Path, model: Path, steps: int) -> Path:
    path = directory / "train.toml"
    path.write_text(f'[model]\nconfig = "{model}"\n[run]\nsteps = {steps}\ntimes = true\n')
    return path


def test_the_command_prints_a_line_of_json_a_step(
    small_set: Path, small_model: Path, tmp_path: Path
) -> None:
    config = config_file(tmp_path, small_model, 2)
    result = run("jobs", "train", "--config", str(config), "--shards", str(small_set))
    assert result.returncode == 0, result.stderr
    records = [json.loads(line) for line in result.stdout.splitlines()]
    assert [record["step"] for record in records] == [0, 1]
    for record in records:
        assert {"loss", "grad_norm", "lr", "tokens", "tokens_per_s", "mfu"} <= record.keys()
        assert record["times"]["predicted"]["micro_batch"] >= 1
        assert len(record["micro_batches"]) == 4
        assert all(row["measured_ms"] > 0 for row in record["micro_batches"])


def damage(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[100] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("harm", [damage, pytest.param(Path.unlink, marks=pytest.mark.slow)])
def test_a_shard_that_is_damaged_or_missing_ends_the_run_in_one_line_that_names_it(
    harm: Callable[[Path], None], small_set: Path, small_model: Path, tmp_path: Path
) -> None:
    harmed = tmp_path / "set"
    shutil.copytree(small_set, harmed)
    harm(harmed / "shards" / "00000.parquet")
    config = config_file(tmp_path, small_model, 1)
    result = run("trainer", "--config", str(config), "--shards", str(harmed))
    assert result.returncode == 2
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1
    assert "00000.parquet" in result.stderr


@pytest.mark.parametrize(
    ("overrides", "ranks", "message"),
    [
        (["mesh.cp_size=3"], 3, "no CP plan of degree 3 in .*, only of [1, 2]; make one with: "),
        (["mesh.dp_size=3"], 3, "dp_size 3 does not divide the 4 micro-batches of step 0; use one"),
        (["model.config={narrow}"], 1, "ids below 3"),
        (["model.config=nothing.json"], 1, "nothing.json: No such file"),
        (["mesh.cp_size=2"], 1, "are 2 ranks, but there are 1 processes"),
        (["run.prefech=1"], 1, "no setting run.prefech; did you mean run.prefetch?"),
        (["run.prefetch=-1"], 1, "prefetch is -1; it must be 0 or more"),
    ],
    ids=str,
)
@pytest.mark.parametrize("rank", [0, 1])
def test_a_mistake_is_one_line_of_rank_0_or_of_one_that_is_alone_with_it(
    overrides: list[str],
    ranks: int,
    message: str,
    rank: int,
    small_set: Path,
    small_model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    narrow = write_model(tmp_path, vocab_size=100)
    config = config_file(tmp_path, small_model, 1)
    monkeypatch.setenv("WORLD_SIZE", str(ranks))
    monkeypatch.setenv("RANK", str(rank))
    monkeypatch.setattr(os, "_exit", sys.exit)  # how one of several ranks leaves
    waits: list[float] = []

    def wait(seconds: float) -> None:
        assert not capsys.readouterr().err
        waits.append(seconds)

    monkeypatch.setattr(last_words.time, "sleep", wait)
    given = [override.format(narrow=narrow) for override in overrides]
    try:
        status = launch.launch(small_set, config, given)
    except SystemExit as left:
        status = left.code
    assert status == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1
    assert printed.err.startswith("steelyard: ")
    for part in message.split(".*"):
        assert part in printed.err
    assert len(waits) == rank  # rank 0 speaks at once


def test_a_set_that_is_missing_or_damaged_is_one_line(
    small_set: Path, small_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = config_file(tmp_path, small_model, 1)
    damaged = tmp_path / "set"
    shutil.copytree(small_set, damaged)
    damage(damaged / "manifest.json")
    for shards, message in (
        (tmp_path, "there is no finished set here; make one with"),
        (damaged, "manifest.sha256 says"),
    ):
        assert launch.launch(shards, config) == 2
        printed = capsys.readouterr()
        assert (printed.out, printed.err.count("\n")) == ("", 1)
        assert message in printed.err


def test_a_rank_that_does_not_know_where_ranks_meet_is_told_of_torchrun(
    small_set: Path,
    small_model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("RANK", "0")
    for name in ("WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    assert launch.launch(small_set, config_file(tmp_path, small_model, 1)) == 2
    printed = capsys.readouterr()
    assert printed.err.count("\n") == 1
    assert "start them with torchrun" in printed.err


def fail(error: BaseException) -> Callable[..., None]:
    def steps(*_: object) -> None:
        raise error

    return steps


def launched(
    steps: Callable[..., None],
    shards: Path,
    config: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> int:
    """The status of a run that does this in place of its steps."""
    monkeypatch.setattr(launch, "_open_group", lambda device: dist.HashStore())
    monkeypatch.setattr(dist, "barrier", lambda: None)
    monkeypatch.setattr(train, "open_run", lambda prepared: SimpleNamespace(steps=steps))
    return launch.launch(shards, config)


def test_an_interrupt_and_a_lack_of_memory_are_one_line(
    small_set: Path,
    small_model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    config = config_file(tmp_path, small_model, 1)
    lack = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB.\nmore")
    for error, status, line in (
        (KeyboardInterrupt(), 130, "steelyard: interrupted\n"),
        (lack, 2, "cpu has not enough memory: CUDA out of memory. Tried to allocate 9 GiB.; lower"),
    ):
        assert launched(fail(error), small_set, config, monkeypatch) == status
        printed = capsys.readouterr()
        assert (printed.out, printed.err.count("\n")) == ("", 1)
        assert line in printed.err


def test_a_loss_that_is_no_number_is_null_on_stdout(
    small_set: Path,
    small_model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def steps(report: Callable[[dict], None], note: Callable[[str], None]) -> None:
        record = {"step": 0, "loss": math.nan, "grad_norm": math.inf}
        report(record | {"tokens": 1, "tokens_per_s": 1.0})

    config = config_file(tmp_path, small_model, 1)
    assert launched(steps, small_set, config, monkeypatch) == 0
    printed = capsys.readouterr()
    found = json.loads(printed.out)
    assert (found["loss"], found["grad_norm"], found["tokens_per_s"]) == (None, None, 1.0)
    assert "loss nan, gradient inf" in printed.err


def test_a_mistake_that_one_rank_finds_is_one_line_and_the_others_say_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fixture_set, "ROWS_PER_GROUP", 1)  # a rank reads its own rows
    data = fixture_set.make_set()
    data.manifest["rows_per_group"] = 1
    root = data.write(tmp_path / "set")
    shard = root / "shards" / "00000.parquet"
    (mine,) = open_shards(root).micro_batches(1, dp_rank=1, dp_size=2)
    row = N + mine.slot
    data = bytearray(shard.read_bytes())
    data[byte_ranges(shard)[row][2]] ^= 1
    shard.write_bytes(data)
    model = write_model(tmp_path, vocab_size=VOCABULARY)
    config = config_file(tmp_path, model, 3)
    torchrun = ["torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    result = run(
        *torchrun, "-m", "trainer", "--config", str(config), "--shards", str(root),
        "--set", "mesh.dp_size=2", "--set", "run.prefetch=1",
    )  # fmt: skip
    assert result.returncode == 1  # torchrun's own
    assert [json.loads(line)["step"] for line in result.stdout.splitlines()] == [0]
    told = [line for line in result.stderr.splitlines() if line.startswith("steelyard:")]
    assert len(told) == 1
    assert f"row group {row}" in told[0]
    assert "trainer/launch.py" not in result.stderr  # no rank's traceback
    assert result.stderr.count("Traceback") == 1  # torchrun's own
