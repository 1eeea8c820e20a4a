"""What a rank spends on each micro-batch of a step, and how much of that waiting for keys."""

from __future__ import annotations

import contextlib
import time
from collections import defaultdict
from collections.abc import Iterator

import torch


class Stopwatch:
    """Spans of a step by what and micro-batch; on CUDA events, read once at the step's end."""

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self._spans: list[tuple[str, int, object, object]] = []
        self._micro_batch = 0

    @contextlib.contextmanager
    def measure(self, what: str, micro_batch: int | None = None) -> Iterator[None]:
        """A span; without a number it belongs to the micro-batch of the last span that had one."""
        if micro_batch is not None:
            self._micro_batch = micro_batch
        number, start = self._micro_batch, self._now()
        yield
        self._spans.append((what, number, start, self._now()))

    def read(self) -> dict[tuple[str, int], float]:
        """Milliseconds of each (what, micro-batch), summed, and begin anew."""
        if self._cuda:
            torch.cuda.synchronize()
        sums: dict[tuple[str, int], float] = defaultdict(float)
        for what, number, start, stop in self._spans:
            sums[what, number] += _ms(start, stop)
        self._spans.clear()
        return sums

    def _now(self) -> object:
        if not self._cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event


def _ms(start: object, stop: object) -> float:
    if isinstance(start, float) and isinstance(stop, float):
        return 1000 * (stop - start)
    assert isinstance(start, torch.cuda.Event)
    assert isinstance(stop, torch.cuda.Event)
    return start.elapsed_time(stop)
