"""A job may die between any two moves of its publication: readers have a whole set, old or new."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from jobs.build import build
from jobs.extend import extend
from jobs.fork import fork
from jobs.replan import replan
from pipeline.config import JobSettings, RunConfig
from pipeline.files import atomic
from pipeline.publish import WORK, recover
from pipeline.report import report
from pipeline.shard.manifest import load_manifest
from pipeline.shard.rank_reader import Reader
from pipeline.shard.reader import open_plan, open_shards
from pipeline.shard.tables import FormatError
from pipeline.verify import VerifyError, verify
from tests.jobs.chain_sets import BEFORE, what_runs
from tests.jobs.small_run import QUIET, digests

SOME = range(0, BEFORE, 9)


class Died(BaseException):
    """The job's process is gone."""


@contextmanager
def dying(moves: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Publications die after so many moves from the working state into the set."""
    replace, left = atomic.move, [moves]

    def move(source: Path, target: Path) -> None:
        if WORK in Path(source).parts and WORK not in Path(target).parts:
            if not left[0]:
                raise Died
            left[0] -= 1
        replace(source, target)

    with monkeypatch.context() as patch:
        patch.setattr("pipeline.publish.move", move)
        yield


def gaps(run: Callable[[], Any], out: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Let a job publish move by move; stop before each, and give the number of those done."""
    with dying(0, monkeypatch), pytest.raises(Died):
        run()
    done = 0
    while True:
        yield done
        with dying(1, monkeypatch):
            try:
                recover(out)
            except Died:
                done += 1
                continue
        return


def test_a_build_that_dies_between_two_moves_is_no_set_until_it_is_run_again(
    first: RunConfig, before: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, met = tmp_path / "set", []
    for gap in gaps(lambda: build(first, out, QUIET), out, monkeypatch):
        met.append(gap)
        with pytest.raises(FormatError, match="there is no finished set here"):
            open_shards(out)
        again = shutil.copytree(out, tmp_path / str(gap))
        build(first, again, QUIET)
        assert digests(again) == digests(before)
    assert met == [0, 1, 2, 3]
    assert digests(out) == digests(before)


def test_an_extension_that_dies_between_two_moves_leaves_the_old_chain_or_the_new_one(
    before: Path, chain: Path, second: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = shutil.copytree(before, tmp_path / "set")
    had = what_runs(before, SOME)
    was_open = open_shards(out)
    digest = was_open.steps_digest(BEFORE)
    new = digests(chain).keys() - digests(before).keys()
    moves = len([name for name in new if "/" in name and not name.startswith("store/")]) + 6
    met = []
    for gap in gaps(lambda: extend(second, out, QUIET), out, monkeypatch):
        met.append(gap)
        assert load_manifest(out).num_steps == BEFORE  # manifest.json moves last
        for open_set in (open_shards, open_plan):
            assert what_runs(out, SOME[:1], open_set) == what_runs(before, SOME[:1])
        assert was_open.another().steps_digest(BEFORE) == digest
        with pytest.raises(VerifyError, match="run the same command again"):
            verify(out)
        if gap in (1, *range(moves - 6, moves)):
            assert report(out)["steps"] == BEFORE
            again = shutil.copytree(out, tmp_path / str(gap))
            extend(second, again, QUIET)
            assert digests(again) == digests(chain)
    assert met == list(range(moves))
    assert digests(out) == digests(chain)
    assert what_runs(out, SOME) == had
    assert was_open.another().steps_digest(BEFORE) == digest  # training goes on as it began
    assert was_open.num_steps == BEFORE


def test_a_replan_that_dies_between_two_moves_leaves_the_old_plans_or_the_new_ones(
    before: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def replanned(root: Path) -> Path:
        replan(root, (2,), "per_sequence", QUIET, JobSettings(executor="local"))
        return root

    def chunks(reader: Reader) -> list[list[int]]:
        return [reader.chunks(step, 1, 2).start.tolist() for step in SOME]

    whole = replanned(shutil.copytree(before, tmp_path / "whole"))
    out, had = shutil.copytree(before, tmp_path / "set"), chunks(open_shards(before))
    met = []
    was_open = open_shards(out)
    for gap in gaps(lambda: replanned(out), out, monkeypatch):
        met.append(gap)
        assert chunks(open_shards(out)) == had
        if gap % 3 == 1:
            with pytest.raises(FormatError, match="a job is publishing here, or died while it was"):
                report(out)
            assert digests(replanned(shutil.copytree(out, tmp_path / str(gap)))) == digests(whole)
    assert len(met) > 4
    assert chunks(was_open) == had
    assert chunks(open_shards(out)) == chunks(open_shards(whole)) != had
    assert digests(out) == digests(whole)


def test_a_fork_that_dies_between_two_moves_leaves_both_sets_whole(
    chain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, out, met = tmp_path / "whole", tmp_path / "set", []
    had = digests(chain)
    fork(chain, 6, whole, QUIET)
    for gap in gaps(lambda: fork(chain, 6, out, QUIET), out, monkeypatch):
        met.append(gap)
        with pytest.raises(FormatError, match="there is no finished set here"):
            open_shards(out)
        again = shutil.copytree(out, tmp_path / str(gap))
        fork(chain, 6, again, QUIET)
        assert digests(again) == digests(whole)
    assert met == [0, 1, 2, 3]
    assert digests(out) == digests(whole)
    assert digests(chain) == had
