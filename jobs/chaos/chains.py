"""Chains under kills: a segment added to a set, and a fork of what came of it."""

from __future__ import annotations

from pathlib import Path

from jobs.chaos import runs
from jobs.chaos.corpus import write_corpus, write_next
from jobs.chaos.undisturbed import BUILD_STAGES, Job, Undisturbed
from pipeline.shard.manifest import load_manifest

_TARGET_TOKENS = 150_000
"""Of the first segment: about a third of the corpus."""
_FORK_STAGES = ("start", "token parts", "shards", "cp plans", "publish")


def undisturbed_extension(
    scratch: Path, *, documents: int = 400, executor: str = "ray"
) -> Undisturbed:
    """A set of a part of a corpus, and its extension: other N and S, one source of it, a new one.

    Raises:
        RuntimeError: the set could not be built.
    """
    config = write_corpus(scratch / "corpus", documents=documents, executor="local")
    following = write_next(scratch / "corpus", documents=documents, executor=executor)
    given = scratch / "given"
    target = f"mixture.target_tokens={_TARGET_TOKENS * documents // 400}"
    built = runs.run("build", "--config", str(config), "--out", str(given), "--set", target)
    if built.status:
        raise RuntimeError(f"left alone, it failed: {built.errors}")

    def command(out: Path) -> list[str]:
        return ["extend", str(out), "--config", str(following)]

    stores = sum(1 for _ in given.glob("store/*/source.json")) + 1
    job = Job(name="extend", command=command, stages=BUILD_STAGES, stores=stores, given=given)
    return Undisturbed(scratch, job)


def undisturbed_fork(scratch: Path, chain: Path) -> Undisturbed:
    """A fork that cuts the chain's last segment in the middle."""
    manifest = load_manifest(chain)
    step = (manifest.segments[-1].first_step + manifest.num_steps) // 2

    def command(out: Path) -> list[str]:
        return ["fork", str(chain), "--from-step", str(step), "--out", str(out)]

    return Undisturbed(
        scratch,
        Job(name="fork", command=command, stages=_FORK_STAGES, beside=chain, goes_on=False),
    )
