"""Progress without a terminal: a line now and then, also while nothing advances."""

from __future__ import annotations

import time

import pytest

from jobs import progress
from jobs.progress import Reporter


def test_a_stage_that_stands_still_says_what_happens(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "_LINE_EVERY_S", 0.01)
    with Reporter().stage("plan", total=4, unit="parts", before="kernels are compiled") as stage:
        before = _wait_for(capsys, "plan: 0%, 0/4 parts, kernels are compiled\n")
        stage.advance(1)
        after = _wait_for(capsys, "plan: 25%, 1/4 parts, time left unknown\n")
        stage.advance(1)
        later = _wait_for(capsys, "plan: 50%, 2/4 parts, ")
    assert "left" not in before
    assert "kernels" not in after.replace(before, "").rpartition("plan: 25%")[2]
    assert later
    assert "plan: 2/4 parts, " in capsys.readouterr().err


def test_time_left_counts_from_the_first_advance(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    counts = progress._Counts(10, "parts", "")
    clock[0] += 60.0  # compiling
    counts.add(2, 0, 0)
    assert counts.time_left() == "time left unknown"
    clock[0] += 8.0
    counts.add(4, 0, 0)
    assert counts.time_left() == "8 s left"


def test_quiet_is_silent(capsys: pytest.CaptureFixture[str]) -> None:
    with Reporter(quiet=True).stage("plan", total=1, unit="parts") as stage:
        stage.advance(1)
    assert capsys.readouterr().err == ""


def _wait_for(capsys: pytest.CaptureFixture[str], text: str) -> str:
    """What was said until `text` was among it."""
    said, until = "", time.monotonic() + 30
    while text not in said and time.monotonic() < until:
        time.sleep(0.01)
        said += capsys.readouterr().err
    assert text in said
    return said
