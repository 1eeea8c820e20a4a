"""Runs a function on many ranks, each a process, forked from one server that has imported torch.

Importing torch is nearly all of a small test's time, so it is done once for the whole test run. A
rank reports and leaves by `os._exit`: taking process groups down can abort a finished rank.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from typing import Any

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["pytest", "tests.trainer.rank_jobs", "torch._dynamo", "pandas"])
_COLLECTIVE_S = 60


def run_ranks(
    world_size: int, function: Callable[..., Any], *arguments: Any, timeout_s: float = 100
) -> list[Any]:
    """`function(rank, *arguments)` on each rank of a gloo group; what each returned.

    Raises:
        AssertionError: a rank failed, with its traceback, or took too long; the others are killed.
    """
    os.environ["OMP_NUM_THREADS"] = "1"  # the server inherits it
    deadline = time.monotonic() + timeout_s
    with tempfile.TemporaryDirectory() as scratch:
        processes, pipes = [], []
        for rank in range(world_size):
            receiver, sender = _CONTEXT.Pipe(duplex=False)
            process = _CONTEXT.Process(
                target=_rank, args=(sender, scratch, rank, world_size, function, arguments)
            )
            process.start()
            sender.close()
            processes.append(process)
            pipes.append(receiver)
        try:
            return _collect(pipes, deadline)
        except BaseException:
            for process in processes:
                process.kill()
            raise
        finally:
            for process in processes:
                process.join()


def _collect(pipes: list[Connection], deadline: float) -> list[Any]:
    results: dict[int, Any] = {}
    while len(results) < len(pipes):
        left = {rank: pipe for rank, pipe in enumerate(pipes) if rank not in results}
        ready = wait(left.values(), max(deadline - time.monotonic(), 0))
        assert ready, f"ranks {[*left]} have not ended in time"
        for rank, pipe in left.items():
            if pipe not in ready:
                continue
            try:
                failure, result = pipe.recv()
            except EOFError:
                raise AssertionError(f"rank {rank} died without a word") from None
            assert not failure, f"rank {rank}:\n{failure}"
            results[rank] = result
    return [results[rank] for rank in range(len(pipes))]


def _rank(
    pipe: Connection,
    scratch: str,
    rank: int,
    world_size: int,
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    logging.getLogger("torch.distributed.tensor").setLevel(logging.ERROR)  # slow, and meant
    try:
        dist.init_process_group(
            "gloo",
            init_method=f"file://{scratch}/group",
            rank=rank,
            world_size=world_size,
            timeout=timedelta(seconds=_COLLECTIVE_S),
        )
        result = function(rank, *arguments)
        dist.barrier()
    except BaseException:
        pipe.send((traceback.format_exc(), None))
        os._exit(1)
    pipe.send(("", result))
    pipe.close()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
