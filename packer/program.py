"""What the ranks of a pipeline run, in which order: 1F1B and interleaved 1F1B."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from packer.plan import Int64
from packer.schedule import Schedule
from packer.schedule_kernels import Program, sort_tasks


def queues_of(pp_size: int, virtual_stages: int, num: int) -> Int64:
    """What each pipeline rank runs, in its order, (pp_size, 2 * virtual_stages * num).

    Task 2 (stage * num + micro_batch) is a forward, the next number its backward. 1F1B, which is
    PipeDream-Flush (arXiv 2006.09503): rank r of p runs p - 1 - r forwards, then forward and
    backward in turn, then the backwards that are left. Interleaved with v chunks a rank (arXiv
    2104.04473, section 2.2; Megatron-LM, core/pipeline_parallel/schedules.py, with groups of p):
    p micro-batches through a rank's first chunk, the same p through its next and so on, then the
    next p; backwards likewise, from the last chunk; 2 (p - 1 - r) + (v - 1) p forwards go ahead.

    Args:
        pp_size: pipeline ranks, p.
        virtual_stages: chunks of a rank, v; chunk c of rank r is stage c p + r.
        num: micro-batches; a multiple of p where v is above 1.
    """
    turns = np.arange(virtual_stages * num)
    group, within = np.divmod(turns, pp_size * virtual_stages)
    chunk, member = np.divmod(within, pp_size)
    micro_batch = group * pp_size + member
    queues = np.empty((pp_size, 2 * len(turns)), np.int64)
    for rank in range(pp_size):
        behind = pp_size - 1 - rank
        ahead = behind if virtual_stages == 1 else 2 * behind + (virtual_stages - 1) * pp_size
        ahead = min(ahead, len(turns))
        in_turn = len(turns) - ahead
        forwards = np.where(turns < ahead, turns, 2 * turns - ahead)  # places of the forwards
        backwards = np.where(turns < in_turn, ahead + 2 * turns + 1, len(turns) + turns)
        stage = chunk * pp_size + rank
        backward_stage = (virtual_stages - 1 - chunk) * pp_size + rank
        queues[rank, forwards] = 2 * (stage * num + micro_batch)
        queues[rank, backwards] = 2 * (backward_stage * num + micro_batch) + 1
    return queues


def program_of(schedule: Schedule, num: int) -> Program:
    """What a data-parallel rank runs with `num` micro-batches.

    Raises:
        ValueError: its pipeline ranks would wait for each other for ever.
    """
    forward, backward = schedule.pass_times
    return _program(schedule.pp_size, schedule.virtual_stages, num, forward, backward)


@lru_cache(maxsize=8)
def _program(pp_size: int, virtual_stages: int, num: int, forward: int, backward: int) -> Program:
    queues = queues_of(pp_size, virtual_stages, num)
    task = np.arange(queues.size)
    cell, is_backward = task // 2, task % 2 == 1
    stage = cell // num
    ends_model = stage == pp_size * virtual_stages - 1
    waits_for = np.where(is_backward, task + 2 * num, task - 2 * num)  # stage after, stage before
    waits_for[is_backward & ends_model] = task[is_backward & ends_model] - 1  # its own forward
    waits_for[~is_backward & (stage == 0)] = -1
    place, order = np.empty_like(task), np.empty_like(task)
    count = sort_tasks(queues.ravel(), pp_size, waits_for, place, order)
    if count < len(task):
        raise ValueError(
            f"{num} micro-batches through pp_size {pp_size} and virtual_stages {virtual_stages}: "
            f"pipeline ranks wait for each other for ever after {count} of {len(task)} tasks"
        )
    waited = waits_for[order]
    return Program(
        rank=stage[order] % pp_size,
        waits_for=np.where(waited < 0, len(task), place[waited]),
        cell=cell[order],
        duration=np.where(is_backward, backward, forward)[order],
    )
