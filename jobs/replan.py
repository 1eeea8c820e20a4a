"""New CP plans for a finished set; the plan, the shards and the other degrees stay."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

from jobs import stages
from jobs.executor import open_executor
from jobs.progress import Reporter
from packer.context_parallel import STRATEGIES
from pipeline.balance import measure_cp
from pipeline.built import workload_of
from pipeline.config import ConfigError, JobSettings
from pipeline.ledger import Ledger
from pipeline.lock import exclusive
from pipeline.planning.cp_plans import CPJob
from pipeline.publish import WORK, publish, read_receipts, recover, staged_parts
from pipeline.shard.manifest import load_manifest


def replan(
    root: Path,
    cp_sizes: Sequence[int],
    strategy: str,
    reporter: Reporter,
    settings: JobSettings | None = None,
) -> None:
    """Plan CP degrees beside those that are there; a degree that is there is made anew.

    The set changes at one moment, at the end: killed before, it is what it was.

    Raises:
        ConfigError: no such strategy.
        FormatError: `root` holds no finished set.
        Busy: another job works on `root`.
    """
    if strategy not in STRATEGIES:
        raise ConfigError(f"no strategy {strategy!r}; known: {', '.join(STRATEGIES)}")
    root, cp_sizes = root.resolve(), tuple(dict.fromkeys(cp_sizes))
    load_manifest(root)  # refuses what is no set before anything is written there
    with exclusive(root / WORK):
        recover(root)
        manifest, out = load_manifest(root), staged_parts(root)
        document = json.loads((root / "manifest.json").read_bytes())
        receipts = read_receipts(manifest)
        prefixes = tuple(f"cp={size}/" for size in cp_sizes)
        kept = [receipt for receipt in receipts if not receipt.path.startswith(prefixes)]
        with (
            open_executor(settings or _settings(manifest.num_parts)) as executor,
            Ledger(root / WORK / "ledger.jsonl") as ledger,
        ):
            for cp_size in cp_sizes:
                job = CPJob(
                    root=str(root),
                    out=str(out),
                    cp_size=cp_size,
                    strategy=strategy,
                    workload=workload_of(manifest),
                )
                key = document["fingerprints"]["plan"]
                kept += stages.plan_cp(job, key, manifest.num_parts, executor, ledger, reporter)
                measures = measure_cp(root, manifest.segments, cp_size, out=out)
                document["cp"] = {
                    **document["cp"],
                    str(cp_size): {"strategy": strategy, **measures},
                }
                document["fingerprints"]["context_parallel"][str(cp_size)] = strategy
            del document["digests"]
            publish(root, document, kept)
            ledger.remove()
    reporter.line(f"{root}: CP degrees {', '.join(sorted(document['cp'], key=int))}")


def _settings(num_parts: int) -> JobSettings:
    """Ray where there is enough to share out."""
    small = num_parts < 2 * (os.cpu_count() or 1)
    return JobSettings(executor="local" if small else "ray")
