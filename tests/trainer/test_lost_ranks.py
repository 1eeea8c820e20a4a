"""A rank that is killed is named in one line, by one of those that are left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch.distributed as dist

from trainer import last_words, launch
from trainer.last_words import LastWords
from trainer.lost_ranks import describe, is_of_a_peer, lost_ranks, this_process

ROOT = Path(__file__).parents[2]
BROKEN = RuntimeError(
    "[pair.cc:553] Connection closed by peer [127.0.0.1]:4738. This is typically\n"
)
KILLED_IN_STEP_1 = """
import os, signal, sys, time
from pathlib import Path
from trainer import train
from trainer.launch import launch

whole = train.Run.step

def step(run, number, coming):
    if number == 1 and os.environ["RANK"] == "1":
        os.kill(os.getpid(), signal.SIGKILL)
    if number == 1 and os.environ["RANK"] == "3":
        time.sleep(600)  # does not notice; rank 0 and 2 wait for rank 1
    return whole(run, number, coming)

train.Run.step = step
sys.exit(launch(Path(sys.argv[1]), Path(sys.argv[2])))
"""
TERMINATED = """
import os, signal, sys, threading, time
from trainer.termination import on_termination

on_termination(lambda: (print("told", flush=True), os._exit(7)))
os.kill(os.getpid(), signal.SIGCHLD)
print("waits", flush=True)
time.sleep(600)
"""


@pytest.fixture
def dead() -> int:
    """The number of a process that was."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


@pytest.fixture(autouse=True)
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How long this process would have waited for others to speak."""
    found: list[float] = []
    monkeypatch.setattr(last_words.time, "sleep", found.append)
    monkeypatch.setattr(last_words, "_LOOK_AROUND_S", 0.1)
    return found


def test_a_process_is_lost_when_it_has_ended_whether_or_not_its_parent_knows(dead: int) -> None:
    here = this_process()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        processes = [here, replace(here, number=child.pid), replace(here, number=dead)]
        assert lost_ranks(processes) == [2]
        child.send_signal(signal.SIGKILL)
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # ended, and not yet reaped
        assert lost_ranks(processes) == [1, 2]


def test_processes_of_other_machines_and_containers_are_not_judged(dead: int) -> None:
    gone = replace(this_process(), number=dead)
    assert lost_ranks([gone]) == [0]
    assert lost_ranks([replace(gone, machine="another")]) == []
    assert lost_ranks([replace(gone, container="another")]) == []


def test_one_rank_names_the_one_that_was_lost_and_the_others_say_nothing(
    dead: int, capsys: pytest.CaptureFixture[str]
) -> None:
    store, here = dist.HashStore(), this_process()
    processes = [here, replace(here, number=dead), here]
    for rank in (0, 2):
        words = LastWords(
            rank=rank, store=store, processes=processes, what_next=lambda: "run it again"
        )
        assert words.of_a_failure(BROKEN)
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert told.startswith(f"steelyard: rank 1 (process {dead} on {here.machine}) ended without a")
    assert told.endswith("; then run it again\n")


def test_ranks_that_are_told_to_end_are_not_taken_for_lost(
    dead: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    store, here = dist.HashStore(), this_process()
    left: list[int] = []
    monkeypatch.setattr(last_words.os, "_exit", left.append)
    LastWords(rank=0, store=store, processes=[here, here]).of_termination()
    gone = replace(here, number=dead)  # the first has ended when the second is told
    LastWords(rank=1, store=store, processes=[gone, here]).of_termination()
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert told.startswith("steelyard: was told to end (SIGTERM); ")
    assert left == [143, 143]


def test_where_no_rank_is_known_to_be_lost_it_is_said_what_torch_met(
    capsys: pytest.CaptureFixture[str],
) -> None:
    here = this_process()
    processes = [here, replace(here, machine="another")]
    words = LastWords(rank=0, store=dist.HashStore(), processes=processes)
    assert words.of_a_failure(BROKEN)
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert "a rank of another machine was lost: [pair.cc:553] Connection closed by peer" in told


def test_a_bug_keeps_its_traceback_and_other_ranks_are_silent(
    capsys: pytest.CaptureFixture[str], waits: list[float]
) -> None:
    store, here = dist.HashStore(), this_process()
    first, second = (LastWords(rank=n, store=store, processes=[here, here]) for n in (0, 1))
    assert not first.of_a_failure(RuntimeError("shapes do not match"))
    assert last_words._LET_ANOTHER_SPEAK_S not in waits
    assert second.of_a_failure(BROKEN)
    assert last_words._LET_ANOTHER_SPEAK_S in waits
    assert not LastWords(rank=0).of_a_failure(BROKEN)  # a process alone
    assert capsys.readouterr().err == ""


def test_what_torch_says_of_a_lost_peer_is_known() -> None:
    assert is_of_a_peer(BROKEN)
    assert is_of_a_peer(RuntimeError("recvBytes: Connection reset by peer"))
    assert not is_of_a_peer(RuntimeError("shapes do not match"))
    assert describe([], []) == ""


def test_it_is_said_what_the_same_command_will_do(tmp_path: Path) -> None:
    assert launch._what_next("").endswith(
        "it begins anew, with checkpoint.directory set it can go on"
    )
    assert launch._what_next(str(tmp_path)).endswith("no checkpoint is there yet")
    (tmp_path / "step-00000003").mkdir()
    assert launch._what_next(str(tmp_path)).endswith(f"it goes on from {tmp_path}/step-00000003")


def test_termination_is_heard_while_the_main_thread_waits() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", TERMINATED], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "waits\n"
        process.terminate()
        assert process.stdout.read() == "told\n"
    assert process.returncode == 7


@pytest.mark.slow
def test_a_killed_rank_ends_the_run_in_one_line_that_says_where_it_goes_on(
    small_set: Path, small_model: Path, tmp_path: Path
) -> None:
    script, config = tmp_path / "script.py", tmp_path / "train.toml"
    script.write_text(KILLED_IN_STEP_1)
    config.write_text(
        f'model.config = "{small_model}"\nrun.steps = 2\nmesh.dp_size = 4\n'
        f'checkpoint.directory = "{tmp_path}/saved"\ncheckpoint.every_steps = 1\n'
    )
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", "4", str(script), str(small_set), str(config)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    told = [line for line in result.stderr.splitlines() if line.startswith("steelyard:")]
    assert len(told) == 1, result.stderr
    assert "steelyard: rank 1 (process " in told[0]
    assert told[0].endswith(f"it goes on from {tmp_path}/saved/step-00000001")
    assert "trainer/launch.py" not in result.stderr  # no rank's traceback
    assert "[rank" not in result.stderr
    assert (tmp_path / "saved" / "step-00000001").is_dir()
