"""Where a job on a set puts what is no part of the set: on a disk, however the set is stored."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

import xxhash

from pipeline.config import ConfigError, JobSettings
from pipeline.files.storage import is_url, local_path
from pipeline.files.url_path import is_remote
from pipeline.publish import WORK
from pipeline.state.ledger import remove_ledger


@dataclass(frozen=True, slots=True)
class Workplace:
    """A set's working state (lock, ledger, digests of inputs) and its scratch.

    What must survive the machine is in `state`, beside the set. Scratch holds what can be made
    again: runs, as large as the tokens, and the inverses of plans.
    """

    root: Path
    """The set's directory, or its URL."""
    scratch: Path
    """A local directory that all workers see."""

    @classmethod
    def of(cls, root: Path, settings: JobSettings) -> Workplace:
        """The workplace of a set.

        Scratch is in the set's own directory, or of a set in an object store in the user's
        directory of caches, unless `job.scratch` names another.

        Raises:
            ConfigError: workers of a cluster would have no scratch in common, or it is a URL.
        """
        own = f"steelyard-{xxhash.xxh3_64_hexdigest(str(root).encode())}"
        if settings.scratch is not None:
            return cls(root, _local_directory(settings.scratch) / own)
        if not is_remote(root):
            return cls(root, root / WORK)
        if settings.executor == "ray" and (settings.address or os.environ.get("RAY_ADDRESS")):
            raise ConfigError(
                f"{root} is in an object store, and workers of a cluster need a directory in "
                "common for what is no part of the set, as large as the tokens; name one on a file "
                "system that all machines share with --set job.scratch=DIR"
            )
        caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        return cls(root, caches / "steelyard" / own)

    @property
    def state(self) -> Path:
        """What a job is held by; locked while one works on the set."""
        return self.root / WORK

    @property
    def ledger(self) -> Path:
        return self.state / "ledger.jsonl"

    def scratch_of(self, plan_key: str) -> Path:
        """Where a plan's inverses and runs are; another plan's never mix with them."""
        return self.scratch / f"scratch-{plan_key[:16]}"

    def scratch_of_store(self, name: str) -> Path:
        """Where a token store in an object store is prepared; gone with the rest of scratch."""
        return self.scratch / f"scratch-{name}"

    def clean_up(self) -> None:
        """Remove what only an unfinished set needs: scratch and the ledger."""
        for path in self.scratch.glob("scratch-*"):
            shutil.rmtree(path, ignore_errors=True)
        if self.scratch != self.state:
            shutil.rmtree(self.scratch, ignore_errors=True)
        remove_ledger(self.ledger)


def _local_directory(scratch: str) -> Path:
    """`job.scratch` as a path.

    Raises:
        ConfigError: it is in an object store.
    """
    name = local_path(scratch)
    if is_url(name):
        raise ConfigError(f"job.scratch is {scratch}; it must be a directory on a disk")
    return Path(name).expanduser().resolve()
