"""One process of a run: opens the process group, trains, prints, and ends.

Rank 0 writes a line of JSON a step to stdout and everything else to stderr. A mistake is one line,
however many ranks find it, and exit status 2; so is the loss of a rank. An interrupt is one line
and 130.
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from trainer.errors import TrainerError, require_torch
from trainer.last_words import LastWords, is_one_of_several
from trainer.lost_ranks import this_process
from trainer.termination import on_termination

if TYPE_CHECKING:
    import torch
    from torch.distributed.distributed_c10d import Store

    from trainer.prepare import Prepared

_TIMEOUT = timedelta(minutes=10)


def launch(shards: str | Path, config: Path, overrides: Sequence[str] = ()) -> int:
    """Train as the rank that torchrun's environment names, or alone without it.

    Returns:
        0, 2 after a mistake of the user's, 130 after an interrupt. Among several processes it does
        not return; there it is 2 for ranks that find another one lost, or 143 where torchrun, which
        finds it too, is faster.
    """
    from pipeline.shard.tables import FormatError, NotInSet
    from pipeline.shard.token_store import StoreError

    rank = int(os.environ.get("RANK", "0"))
    words = LastWords(rank=rank)
    try:
        require_torch()
        from trainer.prepare import prepare
        from trainer.settings import load_settings

        prepared = prepare(load_settings(config, overrides), shards, os.environ)
        words.store = _open_group(prepared.device)
        if is_one_of_several():
            _introduce(words, words.store, prepared.settings.checkpoint.directory)
        _train(prepared, rank)
        status = 0
    except (TrainerError, FormatError, NotInSet, StoreError) as error:
        words.of_a_mistake(error)
        status = 2
    except RuntimeError as error:
        if not words.of_a_failure(error):
            raise
        status = 2
    except KeyboardInterrupt:
        words.of_an_interrupt()
        status = 130
    except BaseException:
        words.leave_it_to_a_traceback()
        raise
    return _end(status)


def _introduce(words: LastWords, store: Store, checkpoints: str) -> None:
    """Tell ranks of one another's processes, so that each knows who is lost; a collective call."""
    import torch.distributed as dist

    processes = [this_process()] * dist.get_world_size()
    dist.all_gather_object(processes, this_process())
    words.store = store.clone()  # pyright: ignore[reportAttributeAccessIssue]
    # (a connection of its own, since torch holds the other while it waits there)
    words.what_next = lambda: _what_next(checkpoints)
    words.processes = processes
    on_termination(words.of_termination)


def _what_next(checkpoints: str) -> str:
    """What the same command will do when it is run again."""
    from trainer.lineage import newest

    again = "run the same command again"
    if not checkpoints:
        return f"{again}; it begins anew, with checkpoint.directory set it can go on"
    path = newest(Path(checkpoints))
    return f"{again}, it goes on from {path}" if path else f"{again}; no checkpoint is there yet"


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
    if is_one_of_several():
        os._exit(status)
    return status
