"""`verify` over workers: the same report and the same first offence wherever units run."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from jobs.executor import open_executor
from jobs.faults import STARTS_OVER
from pipeline.config import ConfigError, JobSettings
from pipeline.shard import schema
from pipeline.shard.tables import FormatError, read_table
from pipeline.verify import Sample, SampleReport, VerifyReport, verify, verify_sample
from pipeline.verify.result import Progress

ALONE_BYTES = 1 << 28
"""So much is read here in less time than workers save: some ten seconds, against their start."""


def verify_set(
    root: Path,
    progress: Progress,
    job_settings: JobSettings | None = None,
    *,
    sample: Sample | None = None,
    scratch: Path | None = None,
) -> VerifyReport | SampleReport:
    """Verify a set, or a sample of it, with files and parts shared out over workers.

    Args:
        root: the set's directory.
        progress: as `pipeline.verify.verify` has it.
        job_settings: how the job runs; None for what suits the set's size.
        sample: the parts that are read; None for all.
        scratch: where temporary files go; default: the system's directory for them.

    Raises:
        VerifyError: the first offence.
        ConfigError: workers of a cluster that have no scratch in common.
    """
    root = root.resolve()
    settings = job_settings or _small_or_large(root, 1.0 if sample is None else sample.share)
    address = settings.address or os.environ.get("RAY_ADDRESS")
    if settings.executor == "ray" and address is not None and scratch is None:
        raise ConfigError(
            "verify on a cluster writes its temporary files where all workers read them; say where "
            "with --scratch DIR, on a file system that all machines share"
        )
    # Removed after the executor is closed: until then a worker may write there.
    with tempfile.TemporaryDirectory(
        prefix="steelyard-verify-", dir=scratch, ignore_cleanup_errors=True
    ) as temporary:
        directory = Path(temporary).resolve()
        with open_executor(settings, STARTS_OVER) as executor:
            in_order = executor.map_in_order
            if sample is None:
                return verify(root, progress=progress, scratch=directory, in_order=in_order)
            return verify_sample(
                root, sample, progress=progress, scratch=directory, in_order=in_order
            )


def settings_of(workers: int | None, address: str | None) -> JobSettings | None:
    """How a job runs for which workers or a cluster were asked; None where neither was."""
    if address is None and workers is None:
        return None
    alone = address is None and workers == 1
    return JobSettings(executor="local" if alone else "ray", workers=workers, address=address)


def _small_or_large(root: Path, share: float) -> JobSettings:
    """Ray where there is enough to share out; the stores hold about as much as the shards."""
    try:
        listed = read_table(root / "files.parquet", schema.FILES).column("bytes")
    except FormatError:
        return JobSettings(executor="local")  # verify says what is wrong
    small = 2 * share * int(listed.to_numpy().sum()) < ALONE_BYTES
    return JobSettings(executor="local" if small else "ray")


def sample_of(share: float | None, seed: int) -> Sample | None:
    """The sample that was asked for.

    Raises:
        ConfigError: a share that is none.
    """
    if share is None:
        return None
    try:
        return Sample(share=share, seed=seed)
    except ValueError as error:
        raise ConfigError(str(error)) from error
