"""The first steps of a set as a set of its own, to be continued in another way."""

from __future__ import annotations

import json
from pathlib import Path

from jobs import stages
from jobs.build import OtherConfiguration
from jobs.progress import Reporter
from jobs.workplace import Workplace
from pipeline.built import check_parts, stores_of
from pipeline.config import ConfigError, JobSettings
from pipeline.files.url_path import is_inside
from pipeline.forking import Fork, describe_fork, fork_at, link_stores, write_fork
from pipeline.publish import WORK, publish, recover
from pipeline.shard.manifest import load_manifest
from pipeline.state.lock import exclusive


def fork(root: Path, from_step: int, out: Path, reporter: Reporter) -> None:
    """Make a set of the steps before `from_step`; killed anywhere and run again, it ends the same.

    Args:
        root: the set's directory.
        from_step: the first step that the fork does not hold.
        out: the fork's directory; made where it is missing.
        reporter: where progress goes.

    Raises:
        ConfigError: no such step, or directories inside one another.
        OtherConfiguration: `out` holds another finished set.
        FormatError: `root` holds no finished set, or a damaged one.
        Busy: another job works on one of the two.
    """
    root, out = root.resolve(), out.resolve()
    if is_inside(root, out) or is_inside(out, root):
        raise ConfigError(
            f"fork: {out} and {root} must lie beside one another; choose another --out"
        )
    load_manifest(root)  # refuses what is no set before anything is written there
    place = Workplace.of(out, JobSettings(executor="local"))
    with exclusive(root / WORK), exclusive(place.state):
        recover(root)
        recover(out)
        manifest = load_manifest(root)
        check_parts(manifest, ("plan/",))
        stores = stores_of(manifest)
        scratch = place.scratch_of("fork")
        made = fork_at(manifest, from_step, stores, scratch)
        if (out / "manifest.json").exists():
            _check_same(out, made)
            reporter.line(f"{out} is finished: nothing to do")
        else:
            link_stores(manifest, made, out)
            files = write_fork(manifest, made, out)
            stages.sweep(out, files)
            document = json.loads((root / "manifest.json").read_bytes())
            publish(out, describe_fork(document, manifest, made, stores, out), files)
            reporter.line(f"{out}: steps 0..{from_step - 1} of {root}")
        place.clean_up()


def _check_same(out: Path, made: Fork) -> None:
    """Refuse to write over another set."""
    found = load_manifest(out)
    if (found.segments, found.fingerprints["plan"]) != (made.segments, made.plan_keys[0]):
        raise OtherConfiguration(f"{out} holds another finished set; choose another --out")
