"""The compiled loop of `wlb_printed`: Algorithm 1 line by line."""

from __future__ import annotations

import numpy as np

from packer.jit import kernel
from packer.packing.kernels import (
    HAND,
    INTAKE_TOKENS,
    LEFT,
    LEFT_TOKENS,
    MAX_TOKENS,
    NUM,
    QUEUED,
    STEP,
    TAKEN,
    first_pieces,
    level_of,
)
from packer.packing.kernels_order import by_work, sort_ascending, stable_order

MORE, EMPTY = 0, 4
"""As in `backlog.Stop`."""


@kernel
def doc_set(tokens, workload, arrival, thresholds, hand, queued, limits, state):
    """Lines 4 to 17: the batch into queues and new pieces, releases, what remained first."""
    new = np.empty(len(tokens) - state[TAKEN] + state[QUEUED], np.int64)
    num_new = 0
    while state[TAKEN] < len(tokens) and arrival[state[TAKEN]] == state[STEP]:
        index = state[TAKEN]
        if level_of(tokens[index], thresholds) < 0:
            new[num_new] = index
            num_new += 1
        else:
            queued[state[QUEUED]] = index
            state[QUEUED] += 1
        state[TAKEN] += 1
    for level in range(len(thresholds)):
        members = 0
        for place in range(state[QUEUED]):
            members += level_of(tokens[queued[place]], thresholds) == level
        to_release = limits[NUM] if members >= limits[NUM] else 0
        kept = 0
        for place in range(state[QUEUED]):
            index = queued[place]
            if to_release > 0 and level_of(tokens[index], thresholds) == level:
                new[num_new] = index
                num_new += 1
                to_release -= 1
            else:
                queued[kept] = index
                kept += 1
        state[QUEUED] = kept
    new = new[:num_new]
    sort_ascending(new)
    by_length = stable_order(-workload[new])
    order = np.empty(state[HAND] + num_new, np.int64)
    for place in range(state[HAND]):
        order[place] = hand[place]
    for place in range(num_new):
        order[state[HAND] + place] = new[by_length[place]]
    return order


@kernel
def place_two(tokens, workload, order, limits, slot, work, length):
    """Lines 19 to 29: the micro-batch of least work, else the shortest, else -1; strictly below."""
    for rank in range(len(order)):
        lightest = 0
        shortest = 0
        for j in range(limits[NUM]):
            if work[j] < work[lightest]:
                lightest = j
            if length[j] < length[shortest]:
                shortest = j
        slot[rank] = -1
        for j in (lightest, shortest):
            if slot[rank] < 0 and length[j] + tokens[order[rank]] < limits[MAX_TOKENS]:
                slot[rank] = j
        if slot[rank] >= 0:
            work[slot[rank]] += workload[order[rank]]
            length[slot[rank]] += tokens[order[rank]]


@kernel
def printed_steps(tokens, workload, arrival, thresholds, hand, queued, limits, state, stream_end):
    """Run an iteration for every whole batch among the first `stream_end` stream tokens.

    The other arguments and what is returned are those of `kernels.greedy_steps`.
    """
    num = limits[NUM]
    row = np.full(len(tokens), -1, np.int64)
    row_work = np.empty((state[LEFT] // num + 1) * num, np.int64)
    num_rows = 0
    stop = MORE
    while (state[STEP] + 1) * limits[INTAKE_TOKENS] <= stream_end:
        order = doc_set(tokens, workload, arrival, thresholds, hand, queued, limits, state)
        slot = np.empty(len(order), np.int64)
        work = np.zeros(num, np.int64)
        place_two(tokens, workload, order, limits, slot, work, np.zeros(num, np.int64))
        if work.min() == 0:
            stop = EMPTY
            break
        rank = by_work(work, first_pieces(order, slot, num))
        state[HAND] = 0
        for place in range(len(order)):
            if slot[place] < 0:
                hand[state[HAND]] = order[place]
                state[HAND] += 1
            else:
                row[order[place]] = num_rows + rank[slot[place]]
                state[LEFT] -= 1
                state[LEFT_TOKENS] -= tokens[order[place]]
        for j in range(num):
            row_work[num_rows + rank[j]] = work[j]
        num_rows += num
        state[STEP] += 1
    return row, row_work[:num_rows], stop
