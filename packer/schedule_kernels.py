"""The pipeline's clock: how long a rank's micro-batches take through its stages.

A stage runs one forward or backward at a time, in an order fixed by the schedule; a forward waits
for the stage before, a backward for the stage after. Stages are equal, a backward takes twice a
forward, sending takes no time. So times are counted in 1/(3 stages) of a workload unit: a
micro-batch of workload w keeps a stage for w forwards and 2 w backwards, all integers.
"""

from __future__ import annotations

import numpy as np

from packer.jit import kernel
from packer.plan import Int64


def time_1f1b(work: Int64, num_stages: int) -> int:
    """Time of one rank's step under 1F1B, in 1/(3 num_stages) of a workload unit.

    Stage s of p runs min(p - 1 - s, M) forwards, then forward and backward in turn, then the
    backwards that are left (PipeDream-Flush, arXiv 2006.09503).

    Args:
        work: workload of each micro-batch in the order in which they run, (num_micro_batches,).
        num_stages: pipeline stages, at least 1.

    Example:
        >>> time_1f1b(np.array([1, 1, 1]), 2)  # (3 + 2 - 1) slots of 1 + 2
        12
    """
    if num_stages < 1 or not len(work):
        raise ValueError(
            f"{num_stages} stages and {len(work)} micro-batches; there must be at least one of each"
        )
    return int(run_1f1b(np.ascontiguousarray(work, np.int64), num_stages))


def even_time_1f1b(total: int, num_micro_batches: int, num_stages: int) -> float:
    """Time of `num_micro_batches` equal micro-batches of `total` work, in the same unit.

    (M + p - 1) slots of a forward and a backward: the bubble of p - 1 slots is included.
    """
    return 3 * total * (num_micro_batches + num_stages - 1) / num_micro_batches


@kernel
def run_1f1b(work, num_stages):
    """When the last backward of any stage ends; `work` is (num_micro_batches,)."""
    num = len(work)
    forward_end = np.full((num_stages, num), -1, np.int64)
    backward_end = np.full((num_stages, num), -1, np.int64)
    clock = np.zeros(num_stages, np.int64)
    forwards = np.zeros(num_stages, np.int64)
    backwards = np.zeros(num_stages, np.int64)
    remaining = 2 * num * num_stages
    while remaining > 0:
        for stage in range(num_stages):
            while backwards[stage] < num:
                ahead = forwards[stage] - backwards[stage]
                if forwards[stage] < num and ahead < num_stages - stage:
                    index = forwards[stage]
                    ready = np.int64(0) if stage == 0 else forward_end[stage - 1, index]
                    if ready < 0:
                        break
                    clock[stage] = max(clock[stage], ready) + work[index]
                    forward_end[stage, index] = clock[stage]
                    forwards[stage] += 1
                else:
                    index = backwards[stage]
                    last = stage == num_stages - 1
                    ready = forward_end[stage, index] if last else backward_end[stage + 1, index]
                    if ready < 0:
                        break
                    clock[stage] = max(clock[stage], ready) + 2 * work[index]
                    backward_end[stage, index] = clock[stage]
                    backwards[stage] += 1
                remaining -= 1
    return clock.max()


@kernel
def slowest_rank_times(work, num_per_rank, dp_size, num_stages, out):
    """Time of each step's slowest data-parallel rank under 1F1B.

    `work` holds each step's slots in turn, (steps * num_per_rank * dp_size,); a rank runs them as
    `packer.plan.slot_of` says; `out` is (steps,).
    """
    rank_work = np.empty(num_per_rank, np.int64)
    for step in range(len(out)):
        first = step * num_per_rank * dp_size
        slowest = np.int64(0)
        for rank in range(dp_size):
            for index in range(num_per_rank):
                place = rank if index % 2 == 0 else dp_size - 1 - rank
                rank_work[index] = work[first + index * dp_size + place]
            slowest = max(slowest, run_1f1b(rank_work, num_stages))
        out[step] = slowest
