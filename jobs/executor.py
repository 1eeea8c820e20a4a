"""Where tasks run: in this process, or on Ray. The result is the same.

Mostly a task is a plain function of picklable arguments that writes its own files and returns a
small receipt, so nothing large passes through the object store. `map_in_order` is for functions of
what the driver holds and wants back: those are few at a time.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Protocol, TypeVar

from pipeline.config import JobSettings

Given = TypeVar("Given")
Made = TypeVar("Made")

_WORKER_ENVIRONMENT = {
    "TOKENIZERS_PARALLELISM": "false",  # one thread a task: Ray owns the cores
    "OMP_NUM_THREADS": "1",
    "RAYON_NUM_THREADS": "1",
}


_CONNECT_S = 10.0
_RETRIES = 3
"""How often Ray runs a task again whose worker died."""
_AGAIN = "run the same command again, it goes on where this run stopped"


class ClusterError(RuntimeError):
    """Ray lost a worker too often, a node, or itself; the message says what to do."""


class Executor(Protocol):
    """Runs tasks and hands back each result as it comes."""

    num_workers: int

    def map(
        self, function: Callable[..., Any], arguments: Sequence[tuple[Any, ...]]
    ) -> Iterator[tuple[int, Any]]:
        """Yield (index into `arguments`, result), in the order of completion."""
        ...

    def map_in_order(
        self, function: Callable[[Given], Made], items: Iterable[Given]
    ) -> Iterator[Made]:
        """Yield results in the order of `items`, which are taken a few ahead of them."""
        ...


class LocalExecutor:
    """A for-loop."""

    num_workers = 1

    def map(
        self, function: Callable[..., Any], arguments: Sequence[tuple[Any, ...]]
    ) -> Iterator[tuple[int, Any]]:
        for index, args in enumerate(arguments):
            yield index, function(*args)

    def map_in_order(
        self, function: Callable[[Given], Made], items: Iterable[Given]
    ) -> Iterator[Made]:
        return map(function, items)


class RayExecutor:
    """Ray Core tasks, a few more in flight than there are cores."""

    def __init__(self, num_workers: int) -> None:
        self.num_workers = num_workers

    def map(
        self, function: Callable[..., Any], arguments: Sequence[tuple[Any, ...]]
    ) -> Iterator[tuple[int, Any]]:
        import ray

        task = ray.remote(num_cpus=1, max_retries=_RETRIES)(function)
        named = task.options(name=_title(function, *arguments[:1]))
        running: dict[Any, int] = {}
        waiting = iter(enumerate(arguments))
        while True:
            while len(running) < 2 * self.num_workers:
                index, args = next(waiting, (-1, None))
                if args is None:
                    break
                running[named.remote(*args)] = index
            if not running:
                return
            with _clear():
                done, _ = ray.wait(list(running), num_returns=1)
            for reference in done:
                index = running.pop(reference)
                with _clear():
                    result = ray.get(reference)
                yield index, result

    def map_in_order(
        self, function: Callable[[Given], Made], items: Iterable[Given]
    ) -> Iterator[Made]:
        import ray

        task = ray.remote(num_cpus=1, max_retries=_RETRIES)(_call)
        running: deque[Any] = deque()
        waiting = iter(items)
        while True:
            for item in islice(waiting, 2 * self.num_workers - len(running)):
                running.append(task.remote(function, item))
            if not running:
                return
            with _clear():
                made: Any = ray.get(running.popleft())
            yield made


def _title(function: Callable[..., Any], arguments: tuple[Any, ...] = ()) -> str:
    """What lists of processes show of a worker: the function, or that which it is given to call."""
    called = arguments[0] if arguments and callable(arguments[0]) else function
    return called.__name__


def _call(function: Callable[[Given], Made], item: Given) -> Made:
    return function(item)


@contextlib.contextmanager
def _clear() -> Iterator[None]:
    """What a task raised as it was raised there; what befell Ray in one line."""
    from ray.exceptions import (
        LocalRayletDiedError,
        NodeDiedError,
        OutOfMemoryError,
        RayError,
        RayTaskError,
        WorkerCrashedError,
    )

    try:
        yield
    except RayTaskError as error:
        raise (error.cause or error) from None
    except OutOfMemoryError as error:
        raise ClusterError(
            "Ray ended a worker because its machine was short of memory, and again each time it "
            f"was retried; lower job.workers or shards.split_bytes and shards.run_tokens, then "
            f"{_AGAIN}"
        ) from error
    except WorkerCrashedError as error:
        raise ClusterError(
            f"a worker of Ray died {_RETRIES + 1} times at one task; if the system killed it for "
            f"memory (see dmesg), lower job.workers; then {_AGAIN}"
        ) from error
    except (LocalRayletDiedError, NodeDiedError) as error:
        raise ClusterError(f"Ray's process on a machine (the raylet) died; {_AGAIN}") from error
    except RayError as error:
        lines = [line for line in str(error).splitlines() if line.strip()]
        reason = lines[0].strip() if lines else type(error).__name__
        raise ClusterError(f"Ray failed: {reason}; {_AGAIN}") from error


@contextlib.contextmanager
def open_executor(settings: JobSettings) -> Iterator[Executor]:
    """An executor for the length of a job; a Ray that this starts, it also stops."""
    if settings.executor == "local":
        yield LocalExecutor()
        return
    import ray

    started = not ray.is_initialized()
    if started:
        _init(settings)
    try:
        cores = int(ray.cluster_resources().get("CPU", 1))
        yield RayExecutor(min(settings.workers or cores, cores))
    finally:
        if started:
            ray.shutdown()


def _init(settings: JobSettings) -> None:
    import ray

    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    address = settings.address or os.environ.get("RAY_ADDRESS")  # `ray job submit` sets it
    if address is not None:
        _check_reachable(address)
        options: dict[str, Any] = {
            "address": address,
            "runtime_env": {"env_vars": _WORKER_ENVIRONMENT},
        }
        advice = "correct job.address, or start a cluster there with: ray start --head"
    else:
        os.environ.update(_WORKER_ENVIRONMENT)
        options = {
            "address": "local",  # and not a cluster that happens to run on this machine
            "num_cpus": settings.workers or os.cpu_count() or 1,
            "include_dashboard": False,
            "object_store_memory": settings.object_store_mb << 20,
        }
        advice = 'run the same command again, or set job.executor = "local" to do without Ray'
    try:
        ray.init(logging_level=logging.ERROR, **options)
    except Exception as error:  # Ray raises what comes to hand, bare Exception among it
        ray.shutdown()
        lines = str(error).splitlines() or [type(error).__name__]
        raise ClusterError(f"Ray did not start: {lines[0].rstrip('.')}; {advice}") from error


def _check_reachable(address: str) -> None:
    """Ray tries for many minutes; whether anything listens is known at once."""
    host, _, port = address.rpartition(":")
    if "/" in address or not host or not port.isdigit():
        return  # auto, local, ray://..
    try:
        socket.create_connection((host, int(port)), timeout=_CONNECT_S).close()
    except OSError as error:
        raise ClusterError(
            f"no Ray cluster answers at {address}: {error.strerror or error}; correct job.address, "
            "or start a cluster there with: ray start --head"
        ) from error
