"""Where tasks run: in this process, or on Ray. The result is the same.

Mostly a task is a plain function of picklable arguments that writes its own files and returns a
small receipt, so nothing large passes through the object store. `map_in_order` is for functions of
what the driver holds and wants back: those are few at a time.
"""

from __future__ import annotations

import contextlib
import logging
import os
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
        from ray.exceptions import RayTaskError

        task = ray.remote(num_cpus=1, max_retries=3)(function)
        running: dict[Any, int] = {}
        waiting = iter(enumerate(arguments))
        while True:
            while len(running) < 2 * self.num_workers:
                index, args = next(waiting, (-1, None))
                if args is None:
                    break
                running[task.remote(*args)] = index
            if not running:
                return
            done, _ = ray.wait(list(running), num_returns=1)
            for reference in done:
                index = running.pop(reference)
                try:
                    yield index, ray.get(reference)
                except RayTaskError as error:
                    raise (error.cause or error) from None

    def map_in_order(
        self, function: Callable[[Given], Made], items: Iterable[Given]
    ) -> Iterator[Made]:
        import ray
        from ray.exceptions import RayTaskError

        task = ray.remote(num_cpus=1, max_retries=3)(_call)
        running: deque[Any] = deque()
        waiting = iter(items)
        while True:
            for item in islice(waiting, 2 * self.num_workers - len(running)):
                running.append(task.remote(function, item))
            if not running:
                return
            try:
                made: Any = ray.get(running.popleft())
            except RayTaskError as error:
                raise (error.cause or error) from None
            yield made


def _call(function: Callable[[Given], Made], item: Given) -> Made:
    return function(item)


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
        environment = {"env_vars": _WORKER_ENVIRONMENT}
        ray.init(address=address, runtime_env=environment, logging_level=logging.ERROR)
        return
    os.environ.update(_WORKER_ENVIRONMENT)
    ray.init(
        address="local",  # and not a cluster that happens to run on this machine
        num_cpus=settings.workers or os.cpu_count() or 1,
        include_dashboard=False,
        object_store_memory=settings.object_store_mb << 20,
        logging_level=logging.ERROR,
    )
