"""New CP plans for a finished set; the plan, the shards and the other degrees stay."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from jobs import stages
from jobs.executor import open_executor
from jobs.faults import GOES_ON
from jobs.progress import Reporter
from jobs.workplace import Workplace
from packer.context_parallel import DIAGNOSTIC, STRATEGIES
from pipeline.balance import cp_parts, describe_cp
from pipeline.built import config_of, workload_of
from pipeline.config import ConfigError, JobSettings
from pipeline.planning.chain import chain_key, plan_keys
from pipeline.planning.cp_plans import check_padding, cp_jobs
from pipeline.publish import publish, read_receipts, recover, staged_parts
from pipeline.settings.context_parallel import ContextParallelSettings
from pipeline.shard.manifest import load_manifest
from pipeline.shard.writer import FileReceipt
from pipeline.state.ledger import Ledger
from pipeline.state.lock import exclusive

_ADVICE = replace(GOES_ON, memory="use a machine with more memory for each of its cores")


def replan(
    root: Path,
    cp_sizes: Sequence[int],
    strategy: str | None,
    reporter: Reporter,
    job_settings: JobSettings | None = None,
    *,
    kv_exchange: float | None = None,
    pad_to: int | None = None,
) -> dict[str, Any]:
    """Plan CP degrees beside those that are there; a degree that is there is made anew.

    The set changes at one moment, at the end: killed before, it is what it was.

    Args:
        root: the set's directory.
        cp_sizes: degrees.
        strategy: a name in `packer.context_parallel.STRATEGIES`; None, here and below, for what
            the set was built with, as far as the strategy has a use for it.
        reporter: where progress goes.
        job_settings: how the job runs; None for what suits the set's size.
        kv_exchange: exposed time of a received KV token, in linear-token equivalents.
        pad_to: what padded pieces are a multiple of, beside 2 x the degree.

    Returns:
        Every degree's plan as the manifest has it, by degree, ascending.

    Raises:
        ConfigError: settings that cannot be.
        PlanError: padding that makes micro-batches too large.
        FormatError: `root` holds no finished set.
        Busy: another job works on `root`.
    """
    root = root.resolve()
    given = {"strategy": strategy, "kv_exchange": kv_exchange, "pad_to": pad_to}
    changes: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    changes["sizes"] = tuple(dict.fromkeys(cp_sizes))
    _check_strategy(strategy)
    manifest = load_manifest(root)  # refuses what is no set before anything is written there
    settings = _settings(config_of(manifest).context_parallel, changes)
    place = Workplace.of(root, JobSettings(executor="local"))  # it needs no scratch
    with exclusive(place.state) as hold:
        recover(root)
        manifest, out = load_manifest(root), staged_parts(root)
        document = json.loads((root / "manifest.json").read_bytes())
        jobs = [  # of each segment, since S_max may differ
            cp_jobs(
                settings,
                root=root,
                out=out,
                max_tokens=segment.max_tokens,
                workload=workload_of(manifest),
            )
            for segment in manifest.segments
        ]
        for segment, of_segment in zip(manifest.segments, jobs, strict=True):
            for job in of_segment:
                check_padding(job, segment.part_numbers)
        prefixes = tuple(f"cp={size}/" for size in settings.sizes)
        kept = [file for file in read_receipts(manifest) if not file.path.startswith(prefixes)]
        with (
            open_executor(job_settings or _small_or_large(manifest.num_parts), _ADVICE) as executor,
            Ledger(place.ledger, hold) as ledger,
        ):
            key, had = chain_key(plan_keys(manifest)), tuple(document["cp"])
            planned: list[FileReceipt] = []
            for of_degree in zip(*jobs, strict=True):
                job = of_degree[0]
                for segment, of_segment in zip(manifest.segments, of_degree, strict=True):
                    planned += stages.plan_cp(of_segment, key, segment, executor, ledger, reporter)
                parts = cp_parts(root, range(manifest.num_parts), job.cp_size, out)
                degree = str(job.cp_size)
                document["cp"][degree] = describe_cp(job, parts)
                document["fingerprints"]["context_parallel"][degree] = job.key(key)
            del document["digests"]
            hold.check()
            publish(root, document, kept, staged=planned)
            ledger.remove()
    replaced = sorted(set(had) & set(map(str, settings.sizes)), key=int)
    plans = sorted(document["cp"].items(), key=lambda plan: int(plan[0]))
    degrees = (f"{degree} ({plan['strategy']})" for degree, plan in plans)
    note = f"; replaced: {', '.join(replaced)}" if replaced else ""
    reporter.line(f"{root}: CP degrees {', '.join(degrees)}{note}")
    return dict(plans)


def _check_strategy(strategy: str | None) -> None:
    known = ", ".join(STRATEGIES)
    if strategy in DIAGNOSTIC:
        raise ConfigError(
            f"{strategy} is a diagnostic, whose ranks hold unequal tokens; steelyard simulate has "
            f"its figures. Plans are written by: {known}"
        )
    if strategy is not None and strategy not in STRATEGIES:
        raise ConfigError(f"no strategy {strategy!r}; known: {known}")


def _settings(
    configured: ContextParallelSettings, changes: dict[str, Any]
) -> ContextParallelSettings:
    """The set's settings with these changes.

    Raises:
        ConfigError: what is wrong with them.
    """
    fields = configured.model_dump()
    if changes.get("strategy", configured.strategy) != configured.strategy:
        del fields["pad_to"], fields["candidates"]  # of the other strategy
    try:
        return ContextParallelSettings.model_validate(fields | changes)
    except ValidationError as error:
        words = [
            ": ".join([*map(str, problem["loc"]), problem["msg"].removeprefix("Value error, ")])
            for problem in error.errors()
        ]
        raise ConfigError(f"replan: {'; '.join(words)}") from error


def _small_or_large(num_parts: int) -> JobSettings:
    """Ray where there is enough to share out."""
    small = num_parts < 2 * (os.cpu_count() or 1)
    return JobSettings(executor="local" if small else "ray")
