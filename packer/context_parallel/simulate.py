"""Strategies side by side on the same micro-batches; nothing is written."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from packer.context_parallel.measures import CPMeter
from packer.context_parallel.options import CPOptions
from packer.context_parallel.plan import CPPlan
from packer.context_parallel.strategies import ADAPTIVE, plan_context_parallel
from packer.plan import Int64
from packer.workload import Workload

ROWS_AT_ONCE = 4096
"""Micro-batches that are planned together, so that memory stays bounded."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MicroBatches:
    """What is to be planned.

    Args:
        piece_tokens: the micro-batches' pieces back to back, (pieces,).
        row_offsets: where each micro-batch's begin, first 0, (rows + 1,).
        max_tokens: S_max.
    """

    piece_tokens: Int64
    row_offsets: Int64
    max_tokens: int

    @property
    def num_rows(self) -> int:
        return len(self.row_offsets) - 1

    def rows(self, start: int, stop: int) -> MicroBatches:
        """Some of them."""
        offsets = self.row_offsets[start : stop + 1]
        return MicroBatches(
            piece_tokens=self.piece_tokens[offsets[0] : offsets[-1]],
            row_offsets=offsets - offsets[0],
            max_tokens=self.max_tokens,
        )


def compare_strategies(
    batches: MicroBatches,
    *,
    cp_sizes: Sequence[int],
    strategies: Sequence[str],
    workload: Workload,
    options: CPOptions,
) -> list[dict[str, Any]]:
    """Plan the same micro-batches at every degree with every strategy and measure what comes out.

    Args:
        batches: at least one.
        cp_sizes: degrees.
        strategies: names in `STRATEGIES` or `DIAGNOSTIC`.
        workload: what pieces cost.
        options: kernels, network, padding; with `max_tokens` set, padding beyond it is an error,
            without it is counted.

    Returns:
        A dict a degree and strategy: `cp_size`, `strategy`, the fields of `CPBalance`,
        `plans_per_s` (micro-batches a CPU second, compiling and measuring apart), `micro_batches`,
        `chosen` (micro-batches that each candidate of `adaptive` made, else None),
        `over_max_tokens` (micro-batches that their pads bring above S_max).

    Raises:
        ValueError: as `plan_context_parallel`.
    """
    return [
        _measured(batches, cp_size, strategy, workload, options)
        for cp_size in cp_sizes
        for strategy in strategies
    ]


def _measured(
    batches: MicroBatches, cp_size: int, strategy: str, workload: Workload, options: CPOptions
) -> dict[str, Any]:
    def plan(rows: MicroBatches) -> CPPlan:
        return plan_context_parallel(
            rows.piece_tokens,
            rows.row_offsets,
            cp_size=cp_size,
            strategy=strategy,
            workload=workload,
            options=options,
        )

    plan(batches.rows(0, 1))  # compiles
    meter, chosen = CPMeter(), Counter[str]()
    seconds, over = 0.0, 0
    for start in range(0, batches.num_rows, ROWS_AT_ONCE):
        rows = batches.rows(start, min(start + ROWS_AT_ONCE, batches.num_rows))
        started = time.process_time()
        made = plan(rows)
        seconds += time.process_time() - started
        meter.add(made, rows.piece_tokens, rows.row_offsets)
        chosen.update(made.strategy)
        row_tokens = np.add.reduceat(made.stop - made.start, made.row_offsets[:-1])
        over += int(np.count_nonzero(row_tokens > batches.max_tokens))
    return {
        "cp_size": cp_size,
        "strategy": strategy,
        **meter.result().as_dict(),
        "plans_per_s": batches.num_rows / max(seconds, 1e-9),
        "micro_batches": batches.num_rows,
        "chosen": (
            {name: chosen[name] for name in options.candidates} if strategy == ADAPTIVE else None
        ),
        "over_max_tokens": over,
    }
