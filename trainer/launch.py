"""One process of a run: opens the process group, trains, prints, and ends.

Rank 0 writes a line of JSON a step to stdout and everything else to stderr. A mistake is one line,
however many ranks find it, and exit status 2; an interrupt is one line and 130.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import sys
import time
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from trainer.errors import TrainerError, require_torch

if TYPE_CHECKING:
    import torch
    from torch.distributed.distributed_c10d import Store

    from trainer.prepare import Prepared

_TIMEOUT = timedelta(minutes=10)
_LET_ANOTHER_SPEAK_S = 10
"""torchrun ends all ranks when the first one ends."""
_SPOKEN = "steelyard/mistakes"


def launch(shards: Path, config: Path, overrides: Sequence[str] = ()) -> int:
    """Train as the rank that torchrun's environment names, or alone without it.

    Returns:
        0, 2 after a mistake of the user's, 130 after an interrupt; among several processes it does
        not return.
    """
    from pipeline.shard.tables import FormatError, NotInSet
    from pipeline.shard.token_store import StoreError

    rank = int(os.environ.get("RANK", "0"))
    store: Store | None = None
    try:
        require_torch()
        from trainer.prepare import prepare
        from trainer.settings import load_settings

        prepared = prepare(load_settings(config, overrides), shards, os.environ)
        store = _open_group(prepared.device)
        _train(prepared, rank)
        status = 0
    except (TrainerError, FormatError, NotInSet, StoreError) as error:
        _say_once(error, rank, store)
        status = 2
    except RuntimeError:
        if store is None or not store.check([_SPOKEN]):
            raise
        _let_another_speak()  # it failed because a rank with a mistake has left
        status = 2
    except KeyboardInterrupt:
        _say_interrupted(rank, store)
        status = 130
    return _end(status)


def _say_once(error: Exception, rank: int, store: Store | None) -> None:
    """Write down a mistake, or leave it to the rank that was faster.

    Before ranks talk, so without a store, all of them find the same, and rank 0 has the word; one
    that is still here afterwards was alone with it.
    """
    if store is None and rank:
        _let_another_speak()
    if store is None or store.add(_SPOKEN, 1) == 1:
        sys.stderr.write(f"steelyard: {error}\n")
    else:
        _let_another_speak()


def _let_another_speak() -> None:
    with contextlib.suppress(KeyboardInterrupt):
        time.sleep(_LET_ANOTHER_SPEAK_S)


def _say_interrupted(rank: int, store: Store | None) -> None:
    """Rank 0 has the word; ranks that fail since this one has left say nothing."""
    if _is_one_of_several():
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # from the terminal, and from torchrun again
    with contextlib.suppress(RuntimeError):  # torchrun's store may be gone
        if store is not None:
            store.add(_SPOKEN, 1)
    if rank == 0:
        sys.stderr.write("steelyard: interrupted\n")


def _open_group(device: torch.device) -> Store:
    """Open the process group, over the ranks of torchrun's environment or this process alone.

    Raises:
        TrainerError: the environment names a rank, and not where ranks meet.
    """
    import torch.distributed as dist
    from torch.distributed.rendezvous import rendezvous

    rank, world_size = 0, 1
    store: Store = dist.HashStore()  # pyright: ignore[reportPrivateImportUsage]
    if "RANK" in os.environ:
        try:
            store, rank, world_size = next(rendezvous("env://", timeout=_TIMEOUT))
        except ValueError as error:
            raise TrainerError(
                f"RANK is set, but the ranks cannot meet: {error}; start them with torchrun, or "
                "unset RANK for a process alone"
            ) from error
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(
        backend, store=store, rank=rank, world_size=world_size, timeout=_TIMEOUT
    )
    return store


def _train(prepared: Prepared, rank: int) -> None:
    import torch.distributed as dist

    from trainer.timing import enough_memory
    from trainer.train import open_run

    def note(text: str) -> None:
        if rank == 0:
            sys.stderr.write(f"{text}\n")

    def report(record: dict) -> None:
        if rank == 0:
            sys.stdout.write(json.dumps(_finite(record)) + "\n")
            sys.stdout.flush()
            note(
                f"step {record['step']} of {prepared.num_steps}: loss {record['loss']:.4f}, "
                f"gradient {record['grad_norm']:.3f}, {record['tokens']:,} tokens, "
                f"{record['tokens_per_s']:,.0f}/s"
            )

    advice = "lower run.loss_rows, set run.recompute, or share the model among more ranks"
    with enough_memory(prepared.device, advice):
        open_run(prepared).steps(report, note)
    dist.barrier()


def _finite(record: dict) -> dict:
    """Numbers that JSON has no word for, of a run that diverged, as None."""
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in record.items()
    }


def _end(status: int) -> int:
    """Leave at once among several processes: taking groups down can abort a finished run."""
    sys.stdout.flush()
    sys.stderr.flush()
    if _is_one_of_several():
        os._exit(status)
    return status


def _is_one_of_several() -> bool:
    return int(os.environ.get("WORLD_SIZE", "1")) > 1
