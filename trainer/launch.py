"""One process of a run: opens the process group, trains, prints, and ends.

Rank 0 writes a line of JSON a step to stdout and everything else to stderr. Mistakes are one line
and exit status 2.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from trainer.errors import TrainerError, require_torch

if TYPE_CHECKING:
    from trainer.prepare import Prepared

_TIMEOUT = timedelta(minutes=10)
_LET_RANK_0_SPEAK_S = 10


def launch(shards: Path, config: Path, overrides: Sequence[str] = ()) -> int:
    """Train as the rank that torchrun's environment names, or alone without it.

    Returns:
        0, or 2 after a mistake of the user's; among several processes it does not return.
    """
    from pipeline.shard.tables import FormatError, NotInSet
    from pipeline.shard.token_store import StoreError

    rank = int(os.environ.get("RANK", "0"))
    ready = False
    try:
        require_torch()
        from trainer.prepare import prepare
        from trainer.settings import load_settings

        prepared = prepare(load_settings(config, overrides), shards, os.environ)
        ready = True
        _train(prepared, rank)
        status = 0
    except (TrainerError, FormatError, NotInSet, StoreError) as error:
        # Before ranks talk all of them find the same mistake; later one may be alone with it.
        if rank == 0 or ready:
            sys.stderr.write(f"steelyard: {error}\n")
        else:
            time.sleep(_LET_RANK_0_SPEAK_S)  # torchrun ends all ranks when the first one ends
        status = 2
    return _end(status)


def _train(prepared: Prepared, rank: int) -> None:
    import torch.distributed as dist

    from trainer.train import open_run

    cuda = prepared.device.type == "cuda"
    backend = "cpu:gloo,cuda:nccl" if cuda else "gloo"
    if "RANK" in os.environ:
        dist.init_process_group(backend, timeout=_TIMEOUT)
    else:
        alone = dist.HashStore()  # pyright: ignore[reportPrivateImportUsage]
        dist.init_process_group(backend, store=alone, rank=0, world_size=1, timeout=_TIMEOUT)

    def note(text: str) -> None:
        if rank == 0:
            sys.stderr.write(f"{text}\n")

    def report(record: dict) -> None:
        if rank == 0:
            sys.stdout.write(json.dumps(record) + "\n")
            sys.stdout.flush()
            note(
                f"step {record['step']} of {prepared.num_steps}: loss {record['loss']:.4f}, "
                f"gradient {record['grad_norm']:.3f}, {record['tokens']:,} tokens, "
                f"{record['tokens_per_s']:,.0f}/s"
            )

    open_run(prepared).steps(report, note)
    dist.barrier()


def _end(status: int) -> int:
    """Leave at once among several processes: taking groups down can abort a finished run."""
    sys.stdout.flush()
    sys.stderr.flush()
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        os._exit(status)
    return status
