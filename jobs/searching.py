"""Windows of look-ahead on the workers: the search that planning is handed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain

from jobs.executor import Executor
from jobs.progress import Stage
from packer.packing.packer import Search
from packer.plan import Steps

ALONE_PIECES = 1 << 18
"""A stream of so few pieces does not pay for workers.

The search has to be compiled either way, here or by each of them at once. What is left is the start
of a worker, two to three seconds, against some seven seconds of search that two workers halve.
"""


def searching(executor: Executor, stage: Stage) -> Search:
    """A search that maps windows over an executor's workers, a few windows a worker in flight.

    A stream stays in this process where no window follows the one that passes `ALONE_PIECES`.

    Args:
        executor: where windows are searched.
        stage: advanced by one a window, with the documents that begin in it and its tokens.
    """

    def search(improve: Callable[[Steps], Steps], windows: Iterable[Steps]) -> Iterator[Steps]:
        waiting = iter(windows)
        first: list[Steps] = []
        mapped = map
        pieces = 0
        if executor.num_workers > 1:
            for window in waiting:
                first.append(window)
                if pieces > ALONE_PIECES:
                    mapped = executor.map_in_order
                    break
                pieces += len(window.pieces)
        for steps in mapped(improve, chain(first, waiting)):
            starts = steps.pieces.doc_start == 0
            stage.advance(1, documents=int(starts.sum()), tokens=int(steps.pieces.tokens.sum()))
            yield steps

    return search
