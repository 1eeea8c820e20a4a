"""What befalls tasks and Ray ends a command in one line, which says what its user can do."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from ray import exceptions as ray_exceptions

from jobs import stages, verifying
from jobs.cli import exit_status
from jobs.executor import Executor, LocalExecutor, open_executor
from jobs.faults import GOES_ON, STARTS_OVER, Advice, ClusterError, OutOfMemory, ray_named
from pipeline.config import JobSettings
from pipeline.config_file import load_config
from pipeline.stores import tokenize
from tests.jobs.command_line import run
from tests.jobs.small_run import small_config

GOES = "run the same command again, it goes on where this run stopped"
OVER = "run the same command again, it starts over"
LOWER = "lower job.workers, or shards.split_bytes and shards.run_tokens"


def too_much(number: int) -> None:
    np.empty(1 << (50 + number), np.uint8)


def too_much_of_arrow(number: int) -> None:
    pa.allocate_buffer(1 << (50 + number))


def nothing_said(_: int) -> None:
    raise MemoryError


def task_error(cause: Exception | None) -> ray_exceptions.RayTaskError:
    return ray_exceptions.RayTaskError("tokenize_split", "Traceback", cause)


RAY_FAULTS: dict[str, tuple[Exception, str]] = {
    "a machine without memory": (
        ray_exceptions.OutOfMemoryError("Task was killed due to the node running low on memory."),
        "Ray ended a worker because its machine was short of memory, and again each time it was "
        "retried; MEMORY; then AGAIN"),
    "a worker that died": (
        ray_exceptions.WorkerCrashedError(),
        "a worker of Ray died 4 times at one task; if the system killed it for memory (see "
        "dmesg), MEMORY; then AGAIN"),
    "a raylet that died": (
        ray_exceptions.LocalRayletDiedError(),
        "Ray's process on a machine (the raylet) died; AGAIN"),
    "a node that died": (
        ray_exceptions.NodeDiedError("gone"),
        "Ray's process on a machine (the raylet) died; AGAIN"),
    "something else of Ray": (
        ray_exceptions.RayError("\n  lost its store \nand more"),
        "Ray failed: lost its store; AGAIN"),
    "something else without a word": (ray_exceptions.RayError(), "Ray failed: RayError; AGAIN"),
    "a task without memory": (
        task_error(pa.ArrowMemoryError("malloc of size 9 failed\nat")),
        "a task found no memory: malloc of size 9 failed; MEMORY; then AGAIN"),
}  # fmt: skip


@pytest.mark.parametrize("advice", [GOES_ON, STARTS_OVER], ids=["goes on", "starts over"])
@pytest.mark.parametrize("fault", RAY_FAULTS)
def test_what_befalls_ray_is_one_line_with_the_commands_advice(fault: str, advice: Advice) -> None:
    error, line = RAY_FAULTS[fault]
    with pytest.raises((ClusterError, OutOfMemory)) as caught, ray_named(advice):
        raise error
    assert str(caught.value) == line.replace("MEMORY", advice.memory).replace("AGAIN", advice.again)
    assert exit_status(caught.value) == 2


def test_what_a_task_raised_is_raised_as_it_was() -> None:
    mistake = ValueError("a mistake")
    with pytest.raises(ValueError, match="a mistake"), ray_named(GOES_ON):
        raise task_error(mistake)
    with pytest.raises(ray_exceptions.RayTaskError), ray_named(GOES_ON):
        raise task_error(None)


def check_named(executor: Executor) -> None:
    """Tasks that find no memory end in a line, by both maps."""
    for task, reason in (
        (too_much, r"Unable to allocate 1\.00 PiB for an array"),
        (too_much_of_arrow, "(malloc|posix_memalign|memory|allocat).*"),
        (nothing_said, "MemoryError"),
    ):
        line = rf"a task found no memory: {reason}.*; {LOWER}; then {GOES}"
        for mapped in (lambda t: executor.map(t, [(0,)]), lambda t: executor.map_in_order(t, [0])):
            with pytest.raises(OutOfMemory) as caught:
                list(mapped(task))
            assert re.fullmatch(line, str(caught.value))


def test_a_task_without_memory_is_named_in_a_loop() -> None:
    check_named(LocalExecutor())


@pytest.mark.ray
@pytest.mark.slow
def test_a_task_without_memory_is_named_by_ray() -> None:
    with open_executor(JobSettings(executor="ray", workers=1, object_store_mb=80)) as executor:
        check_named(executor)


def test_a_build_without_memory_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tokenize, "_encode", lambda *_: too_much_of_arrow(0))
    status, line = built(tmp_path, monkeypatch, capsys)
    assert status == 2
    assert line.startswith("steelyard: a task found no memory: ")
    assert line.endswith(f"; {LOWER}; then {GOES}\n")


def test_a_driver_without_memory_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(stages, "plan", lambda *_: nothing_said(0))
    assert built(tmp_path, monkeypatch, capsys) == (
        2,
        "steelyard: out of memory: MemoryError; free memory on this machine, or run it on one that "
        "has more\n",
    )


def built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> tuple[int, str]:
    """A small build's exit status, and what it says on stderr."""
    config = small_config(tmp_path / "corpus")
    monkeypatch.setattr("pipeline.config_file.load_config", lambda *_: config)
    assert load_config is not config
    status = run("build", "--config", "-", "--out", str(tmp_path / "out"), "--quiet")
    return status, capsys.readouterr().err


def test_verify_starts_over_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Advice] = []

    @contextmanager
    def opened(_: JobSettings, advice: Advice) -> Iterator[Executor]:
        given.append(advice)
        yield LocalExecutor(advice)

    monkeypatch.setattr(verifying, "open_executor", opened)
    monkeypatch.setattr(
        verifying, "verify", lambda *_, in_order, **__: list(in_order(nothing_said, [0]))
    )
    with pytest.raises(OutOfMemory, match=f"; lower --workers; then {OVER}$"):
        verifying.verify_set(tmp_path, lambda *_: None, JobSettings(executor="local"))
    assert given == [STARTS_OVER]
    with (
        pytest.raises(ClusterError, match=r"correct --address, or start a cluster"),
        open_executor(JobSettings(executor="ray", address="127.0.0.1:1"), STARTS_OVER),
    ):
        pass
