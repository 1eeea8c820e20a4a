"""A set branches by forks: its first steps as they are, and then another way."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from jobs.build import OtherConfiguration
from jobs.extend import extend
from jobs.fork import fork
from pipeline.config import ConfigError, RunConfig
from pipeline.shard.manifest import load_manifest
from pipeline.shard.reader import open_plan, open_shards
from pipeline.verify import verify
from tests.jobs.chain_sets import BEFORE, what_runs
from tests.jobs.small_run import QUIET, digests


@pytest.mark.parametrize("step", [1, 6, BEFORE, BEFORE + 3])
def test_a_fork_holds_the_steps_before_it_and_goes_on_in_another_way(
    step: int, before: Path, chain: Path, second: RunConfig, tmp_path: Path
) -> None:
    out = tmp_path / "fork"
    fork(chain, step, out, QUIET)
    verify(out)
    manifest, whole = load_manifest(out), load_manifest(chain)
    assert manifest.num_steps == step
    steps = range(max(0, step - 4), step)
    assert what_runs(out, steps) == what_runs(chain, steps)
    assert np.array_equal(manifest.step_targets, whole.step_targets[:step])
    assert open_shards(out).steps_digest(step) == open_plan(chain).steps_digest(step)
    parts = [path for path in (chain / "shards").glob("*.parquet")]
    same = [path for path in parts if (out / "shards" / path.name).exists()
            and (out / "shards" / path.name).samefile(path)]  # fmt: skip
    assert len(same) >= manifest.num_parts - 1  # all but the part that is cut are links
    if step == BEFORE:
        assert digests(out) == digests(before)  # at a border it is the set that was extended
    fork(chain, step, out, QUIET)  # nothing to do
    if step in (6, BEFORE + 3):
        extend(second, out, QUIET)
        verify(out)
        assert len(load_manifest(out).segments) == (2 if step < BEFORE else 3)


def test_a_cut_segment_lists_what_did_not_run(chain: Path, tmp_path: Path) -> None:
    # Under wlb long pieces wait, so some that arrived before the cut would run behind it.
    waiting = 0
    for step in range(4, 14, 3):
        out = tmp_path / str(step)
        fork(chain, step, out, QUIET)
        manifest = load_manifest(out)
        [segment] = manifest.segments
        assert segment.cut
        assert segment.target_tokens == segment.stream_tokens
        waiting += manifest.totals["tail_pieces"]
        assert manifest.totals["placed_tokens"] + manifest.totals["tail_tokens"] == (
            segment.stream_tokens
        )
    assert waiting > 0


def test_forks_that_cannot_be_are_refused(chain: Path, before: Path, tmp_path: Path) -> None:
    last = load_manifest(chain).num_steps
    for step in (0, last + 1):
        with pytest.raises(ConfigError, match=rf"step {step} is not in 1\.\.{last}"):
            fork(chain, step, tmp_path / "out", QUIET)
    fork(chain, last, tmp_path / "all", QUIET)
    assert digests(tmp_path / "all") == digests(chain)
    with pytest.raises(OtherConfiguration, match="another finished set"):
        fork(chain, 3, tmp_path / "all", QUIET)
    with pytest.raises(ConfigError, match="must lie beside one another"):
        fork(chain, 3, chain / "inside", QUIET)


def test_a_fork_killed_anywhere_ends_the_same(
    chain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fork(chain, 6, tmp_path / "whole", QUIET)

    def die(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    out = tmp_path / "killed"
    for place in (
        "pipeline.forking.write_table",
        "jobs.fork.publish",
        "jobs.fork.Workplace.clean_up",
    ):
        with monkeypatch.context() as patch:
            patch.setattr(place, die)
            with pytest.raises(KeyboardInterrupt):
                fork(chain, 6, out, QUIET)
    fork(chain, 6, out, QUIET)
    assert digests(out) == digests(tmp_path / "whole")
    assert not list((out / ".build").glob("scratch-*"))


def test_where_no_links_can_be_parts_are_copied(
    chain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError("another disk")

    fork(chain, 6, tmp_path / "links", QUIET)
    monkeypatch.setattr("os.link", refuse)
    fork(chain, 6, tmp_path / "copies", QUIET)
    assert digests(tmp_path / "copies") == digests(tmp_path / "links")
