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

from jobs.faults import GOES_ON, RETRIES, Advice, ClusterError, memory_named, ray_named
from pipeline.config import JobSettings

Given = TypeVar("Given")
Made = TypeVar("Made")

_WORKER_ENVIRONMENT = {
    "TOKENIZERS_PARALLELISM": "false",  # one thread a task: Ray owns the cores
    "OMP_NUM_THREADS": "1",
    "RAYON_NUM_THREADS": "1",
}
_CONNECT_S = 10.0


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

    def __init__(self, advice: Advice = GOES_ON) -> None:
        self._advice = advice

    def map(
        self, function: Callable[..., Any], arguments: Sequence[tuple[Any, ...]]
    ) -> Iterator[tuple[int, Any]]:
        for index, args in enumerate(arguments):
            with memory_named(self._advice):
                made = function(*args)
            yield index, made

    def map_in_order(
        self, function: Callable[[Given], Made], items: Iterable[Given]
    ) -> Iterator[Made]:
        for item in items:
            with memory_named(self._advice):
                made = function(item)
            yield made


class RayExecutor:
    """Ray Core tasks, a few more in flight than there are cores."""

    def __init__(self, num_workers: int, advice: Advice = GOES_ON) -> None:
        self.num_workers = num_workers
        self._advice = advice

    def map(
        self, function: Callable[..., Any], arguments: Sequence[tuple[Any, ...]]
    ) -> Iterator[tuple[int, Any]]:
        import ray

        task = ray.remote(num_cpus=1, max_retries=RETRIES)(function)
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
            with ray_named(self._advice):
                done, _ = ray.wait(list(running), num_returns=1)
            for reference in done:
                index = running.pop(reference)
                with ray_named(self._advice):
                    result = ray.get(reference)
                yield index, result

    def map_in_order(
        self, function: Callable[[Given], Made], items: Iterable[Given]
    ) -> Iterator[Made]:
        import ray

        task = ray.remote(num_cpus=1, max_retries=RETRIES)(_call)
        running: deque[Any] = deque()
        waiting = iter(items)
        while True:
            for item in islice(waiting, 2 * self.num_workers - len(running)):
                running.append(task.remote(function, item))
            if not running:
                return
            with ray_named(self._advice):
                made: Any = ray.get(running.popleft())
            yield made


def _title(function: Callable[..., Any], arguments: tuple[Any, ...] = ()) -> str:
    """What lists of processes show of a worker: the function, or that which it is given to call."""
    called = arguments[0] if arguments and callable(arguments[0]) else function
    return called.__name__


def _call(function: Callable[[Given], Made], item: Given) -> Made:
    return function(item)


@contextlib.contextmanager
def open_executor(settings: JobSettings, advice: Advice = GOES_ON) -> Iterator[Executor]:
    """An executor for the length of a job; a Ray that this starts, it also stops.

    Args:
        settings: how the job runs.
        advice: what its user can do when a task or Ray fails.

    Raises:
        ClusterError: Ray does not start, or there is none at the address.
    """
    if settings.executor == "local":
        yield LocalExecutor(advice)
        return
    import ray

    started = not ray.is_initialized()
    if started:
        _init(settings, advice)
    try:
        cores = int(ray.cluster_resources().get("CPU", 1))
        yield RayExecutor(min(settings.workers or cores, cores), advice)
    finally:
        if started:
            ray.shutdown()


def _init(settings: JobSettings, advice: Advice) -> None:
    import ray

    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    address = settings.address or os.environ.get("RAY_ADDRESS")  # `ray job submit` sets it
    if address is not None:
        _check_reachable(address, advice)
        options: dict[str, Any] = {
            "address": address,
            "runtime_env": {"env_vars": _WORKER_ENVIRONMENT},
        }
        remedy = f"correct {advice.address}, or start a cluster there with: ray start --head"
    else:
        os.environ.update(_WORKER_ENVIRONMENT)
        options = {
            "address": "local",  # and not a cluster that happens to run on this machine
            "num_cpus": settings.workers or os.cpu_count() or 1,
            "include_dashboard": False,
            "object_store_memory": settings.object_store_mb << 20,
        }
        remedy = f"run the same command again, or {advice.alone}"
    try:
        ray.init(logging_level=logging.ERROR, **options)
    except Exception as error:  # Ray raises what comes to hand, bare Exception among it
        ray.shutdown()
        lines = str(error).splitlines() or [type(error).__name__]
        raise ClusterError(f"Ray did not start: {lines[0].rstrip('.')}; {remedy}") from error


def _check_reachable(address: str, advice: Advice) -> None:
    """Ray tries for many minutes; whether anything listens is known at once."""
    host, _, port = address.rpartition(":")
    if "/" in address or not host or not port.isdigit():
        return  # auto, local, ray://..
    try:
        socket.create_connection((host, int(port)), timeout=_CONNECT_S).close()
    except OSError as error:
        raise ClusterError(
            f"no Ray cluster answers at {address}: {error.strerror or error}; correct "
            f"{advice.address}, or start a cluster there with: ray start --head"
        ) from error
