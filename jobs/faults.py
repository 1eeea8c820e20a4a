"""What befalls a task, or Ray, in one line that says what to do.

Nothing here is a bug of the task: memory ran out, a worker or a machine was lost, or Ray itself.
What helps depends on the command that ran it, so the command brings the advice.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

RETRIES = 3
"""How often Ray runs a task again whose worker died."""


class ClusterError(RuntimeError):
    """Ray lost a worker too often, a node, or itself; the message says what to do."""


class OutOfMemory(RuntimeError):
    """A task asked for memory that there was not; the message says what to lower."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """What a command's user can do about a fault.

    Args:
        again: what running it again does.
        memory: what makes it take less memory.
        alone: what makes it do without Ray.
        address: what names the cluster.
    """

    again: str
    memory: str
    alone: str = 'set job.executor = "local" to do without Ray'
    address: str = "job.address"


GOES_ON = Advice(
    again="run the same command again, it goes on where this run stopped",
    memory="lower job.workers, or shards.split_bytes and shards.run_tokens",
)
"""Of jobs that keep what is done, by a configuration."""
STARTS_OVER = Advice(
    again="run the same command again, it starts over",
    memory="lower --workers",
    alone="give --workers 1 to do without Ray",
    address="--address",
)
"""Of jobs that keep nothing, by options."""


@contextlib.contextmanager
def memory_named(advice: Advice) -> Iterator[None]:
    """A task that finds no memory, in one line."""
    try:
        yield
    except MemoryError as error:
        raise _out_of_memory(error, advice) from error


@contextlib.contextmanager
def ray_named(advice: Advice) -> Iterator[None]:
    """What a task raised as it was raised there; no memory, and what befell Ray, in one line."""
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
        if isinstance(error.cause, MemoryError):
            raise _out_of_memory(error.cause, advice) from error
        raise (error.cause or error) from None
    except OutOfMemoryError as error:
        raise ClusterError(
            "Ray ended a worker because its machine was short of memory, and again each time it "
            f"was retried; {advice.memory}; then {advice.again}"
        ) from error
    except WorkerCrashedError as error:
        raise ClusterError(
            f"a worker of Ray died {RETRIES + 1} times at one task; if the system killed it for "
            f"memory (see dmesg), {advice.memory}; then {advice.again}"
        ) from error
    except (LocalRayletDiedError, NodeDiedError) as error:
        raise ClusterError(
            f"Ray's process on a machine (the raylet) died; {advice.again}"
        ) from error
    except RayError as error:
        lines = [line for line in str(error).splitlines() if line.strip()]
        reason = lines[0].strip() if lines else type(error).__name__
        raise ClusterError(f"Ray failed: {reason}; {advice.again}") from error


def _out_of_memory(error: MemoryError, advice: Advice) -> OutOfMemory:
    lines = str(error).splitlines() or [type(error).__name__]
    return OutOfMemory(f"a task found no memory: {lines[0]}; {advice.memory}; then {advice.again}")
