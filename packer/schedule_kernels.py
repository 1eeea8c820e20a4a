"""Compiled clock: tasks in an order in which none waits for a later one, and their run."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from packer.jit import kernel


class Program(NamedTuple):
    """The forwards and backwards of one data-parallel rank's step, flat arrays of (tasks,)."""

    rank: np.ndarray
    """Pipeline rank that runs the task, int64."""
    waits_for: np.ndarray
    """Place in the program of the task that it waits for; the number of tasks for none, int64."""
    cell: np.ndarray
    """stage * micro-batches + micro-batch, int64."""
    duration: np.ndarray
    """Of the task, where that cell's cost is 1, int64."""


@kernel
def sort_tasks(queue, num_ranks, waits_for, place, order):
    """Order tasks so that each stands after the one before it on its rank and the one it waits for.

    Args:
        queue: each rank's tasks as it runs them, one rank after the other, (tasks,).
        num_ranks: pipeline ranks, all with as many tasks.
        waits_for: of each task, the one it waits for, -1 for none, (tasks,).
        place: out, each task's place in the order, (tasks,).
        order: out, (tasks,).

    Returns:
        How many tasks were ordered; less than all where ranks wait for each other for ever.
    """
    per_rank = len(queue) // num_ranks
    done = np.zeros(num_ranks, np.int64)
    place[:] = -1
    count = 0
    moved = True
    while moved:
        moved = False
        for rank in range(num_ranks):
            while done[rank] < per_rank:
                task = queue[rank * per_rank + done[rank]]
                if waits_for[task] >= 0 and place[waits_for[task]] < 0:
                    break
                place[task] = count
                order[count] = task
                count += 1
                done[rank] += 1
                moved = True
    return count


@kernel
def run(program, costs, ends, clocks):
    """When the last pipeline rank is done.

    Args:
        program: what they run.
        costs: of each cell, int64 (stages * micro-batches,).
        ends: scratch, when each task ends, (tasks + 1,), the last of them 0.
        clocks: scratch, of each pipeline rank, (pp_size,).
    """
    clocks[:] = 0
    for task in range(len(program.rank)):
        rank = program.rank[task]
        start = max(clocks[rank], ends[program.waits_for[task]])
        end = start + program.duration[task] * costs[program.cell[task]]
        ends[task] = end
        clocks[rank] = end
    return clocks.max()


@kernel
def set_costs(work, tokens, shares, token_costs, reach, costs):
    """Costs of one rank's cells; where `reach` is true, no less than they are.

    Args:
        work: workload of its micro-batches in the order in which they run, (micro-batches,).
        tokens: of the same.
        shares: of the stages, (stages,).
        token_costs: of a token on each stage, in the shares' unit, (stages,).
        reach: take the larger of the cost that is there and the new one.
        costs: in and out, (stages * micro-batches,).
    """
    num = len(work)
    for stage in range(len(shares)):
        share, per_token = shares[stage], token_costs[stage]
        for index in range(num):
            cost = share * work[index] + per_token * tokens[index]
            cell = stage * num + index
            costs[cell] = max(costs[cell], cost) if reach else cost


@kernel
def run_steps(program, work, tokens, slots, shares, token_costs, num_clocks, lockstep, out):
    """Time of each step.

    Args:
        program: what each data-parallel rank runs.
        work: workload of the slots of each step in turn, (steps * slots,).
        tokens: of the same.
        slots: of a step, that each data-parallel rank runs in its order, one rank after the other,
            (slots,).
        shares: of the stages, (stages,).
        token_costs: of a token on each stage, in the shares' unit, (stages,).
        num_clocks: pipeline ranks.
        lockstep: each task takes as long as on the slowest data-parallel rank; otherwise the
            slowest rank's step counts.
        out: (steps,).
    """
    num_cells = len(program.rank) // 2
    num = num_cells // len(shares)
    costs = np.zeros(num_cells, np.int64)
    ends = np.zeros(len(program.rank) + 1, np.int64)
    clocks = np.zeros(num_clocks, np.int64)
    rank_work = np.zeros(num, np.int64)
    rank_tokens = np.zeros(num, np.int64)
    for step in range(len(out)):
        first = step * len(slots)
        slowest = np.int64(0)
        for start in range(0, len(slots), num):
            for index in range(num):
                rank_work[index] = work[first + slots[start + index]]
                rank_tokens[index] = tokens[first + slots[start + index]]
            reach = lockstep and start > 0
            set_costs(rank_work, rank_tokens, shares, token_costs, reach, costs)
            if not lockstep:
                slowest = max(slowest, run(program, costs, ends, clocks))
        out[step] = run(program, costs, ends, clocks) if lockstep else slowest
