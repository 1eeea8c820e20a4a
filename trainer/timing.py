"""How long a call takes on a device: the median of a few runs after a first one."""

from __future__ import annotations

import contextlib
import platform
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from trainer.errors import TrainerError

AT_LEAST = 3
"""Runs that are always made."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Clock:
    """Times calls on one device.

    Args:
        device: on CUDA events are read, elsewhere the process's clock.
        repeats: runs whose median counts; a first one, which compiles and allocates, does not.
        budget_s: after this long no more than three runs are made.
    """

    device: torch.device
    repeats: int = 7
    budget_s: float = 1.0

    def median_ms(self, call: Callable[[], object]) -> float:
        """Milliseconds of a call."""
        call()
        times: list[float] = []
        while len(times) < max(self.repeats, AT_LEAST):
            times.append(self._once(call))
            if len(times) >= AT_LEAST and sum(times) > 1000 * self.budget_s:
                break
        return statistics.median(times)

    def _once(self, call: Callable[[], object]) -> float:
        if self.device.type != "cuda":
            start = time.perf_counter()
            call()
            return 1000 * (time.perf_counter() - start)
        before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize(self.device)
        before.record()
        call()
        after.record()
        after.synchronize()
        return before.elapsed_time(after)


@contextlib.contextmanager
def enough_memory(
    device: torch.device, advice: str = "lower --max-tokens, or raise --tp-size"
) -> Iterator[None]:
    """Turns a lack of the device's memory into a TrainerError, with what may be done about it."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise TrainerError(
            f"{device} has not enough memory: {str(error).splitlines()[0]}; {advice}"
        ) from None


def open_device(name: str) -> torch.device:
    """The device of that name; "auto" is CUDA where there is one, else the CPU.

    Raises:
        TrainerError: it is not there.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        device = torch.device("meta")
    if device.type not in ("cpu", "cuda"):
        raise TrainerError(f'no device "{name}"; known are auto, cpu, cuda and cuda:N')
    if device.type == "cuda":
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if (device.index or 0) >= count:
            raise TrainerError(
                f"no CUDA device {device.index or 0}: torch {torch.__version__} sees {count}; "
                "run this on a machine with a GPU, or on the device cpu"
            )
        torch.cuda.set_device(device)
    return device


def describe(device: torch.device) -> dict[str, str]:
    """The machine and the versions that times depend on."""
    if device.type == "cpu":
        return {"device": platform.processor() or platform.machine(), "torch": torch.__version__}
    properties = torch.cuda.get_device_properties(device)
    return {
        "device": properties.name,
        "memory": f"{properties.total_memory / 2**30:.0f} GiB",
        "capability": f"{properties.major}.{properties.minor}",
        "torch": torch.__version__,
        "cuda": str(torch.version.cuda),
    }
