"""The compiled loop of `fixed_greedy`: windows of several steps, bins of exactly S tokens."""

from __future__ import annotations

import numpy as np

from packer.jit import kernel
from packer.packing.kernels import (
    EARLY,
    HAND,
    INTAKE,
    INTAKE_TOKENS,
    LAG,
    LATE,
    LEFT,
    LEFT_TOKENS,
    MAX_AGE,
    MAX_LAG,
    MAX_STEPS,
    MAX_TOKENS,
    MORE,
    NUM,
    RELEASE_AGE,
    STEP,
    TAKEN,
    WINDOW_STEPS,
    WINDOW_TOKENS,
    finish_step,
    first_pieces,
    place,
    take_in,
)
from packer.packing.kernels_order import by_work, in_groups

LONG = 8
"""A piece of more than S / LONG tokens is placed before the shorter ones."""


@kernel
def work_of_bins(values, order, slot, num):
    """The sum over each bin's pieces of a value a piece, (num,)."""
    sums = np.zeros(num, np.int64)
    for place_in_order in range(len(order)):
        if slot[place_in_order] >= 0:
            sums[slot[place_in_order]] += values[order[place_in_order]]
    return sums


@kernel
def steps_by_arrival(tokens, arrival, order, slot, group, num_steps):
    """Which step each group of bins runs as: by the mean arrival of its tokens, ties in order.

    `group` is of each bin, (bins,); returns the step in the window of each group, (num_steps,).
    """
    held = np.zeros(num_steps, np.int64)
    arrived = np.zeros(num_steps, np.int64)
    for place_in_order in range(len(order)):
        if slot[place_in_order] >= 0:
            index = order[place_in_order]
            held[group[slot[place_in_order]]] += tokens[index]
            arrived[group[slot[place_in_order]]] += tokens[index] * (arrival[index] - arrival[0])
    mean = arrived / held
    step = np.zeros(num_steps, np.int64)
    for one in range(num_steps):
        for other in range(num_steps):
            earlier = mean[other] < mean[one] or (mean[other] == mean[one] and other < one)
            step[one] += earlier
    return step


@kernel
def fixed_order(tokens, arrival, candidates, limits, state, size, longest_first):
    """The order in which to place a window's pieces: (candidates,), indices.

    First what would be out of its displacement bound if it ran at the end of the next window; then
    the long ones, the longest first; then the short ones in order of the stream, or with
    `longest_first` those that have waited and then the longest first. Candidates are ascending.
    """
    last_call = limits[MAX_AGE] - 2 * size + 2
    group = np.empty(len(candidates), np.int64)
    key = np.zeros(len(candidates), np.int64)
    for place_in_hand in range(len(candidates)):
        index = candidates[place_in_hand]
        age = state[STEP] - arrival[index]
        if age >= max(1, min(limits[RELEASE_AGE], last_call)):
            group[place_in_hand] = 0
        elif LONG * tokens[index] > limits[MAX_TOKENS]:
            group[place_in_hand] = 1
        elif age > 0 or not longest_first:
            group[place_in_hand] = 2
        else:
            group[place_in_hand] = 3
        if group[place_in_hand] % 2:
            key[place_in_hand] = -tokens[index]
    return in_groups(candidates, group, key, 4)


@kernel
def max_lag(limits, size):
    """Steps that intake may fall behind: less where windows use up the displacement bound."""
    return max(1, min(limits[MAX_LAG], limits[MAX_AGE] - 2 * size + 1))


@kernel
def out_of_bound(arrival, order, slot, rank, limits, first_step):
    """Whether a placed piece is out of its displacement bound, and on which side.

    `rank` is of each bin, step-major inside the window, (bins,).
    """
    for place_in_order in range(len(order)):
        if slot[place_in_order] >= 0:
            step = first_step + rank[slot[place_in_order]] // limits[NUM]
            age = step - arrival[order[place_in_order]]
            if age > limits[MAX_AGE]:
                return LATE
            if age < -limits[MAX_AGE]:
                return EARLY
    return MORE


@kernel
def window_size(limits, state, global_batches):
    """How many steps the next window has: less than wanted where the stream ends before."""
    by_tokens = state[LEFT_TOKENS] // limits[INTAKE_TOKENS]
    return min(global_batches, min(by_tokens, state[LEFT] // limits[NUM]))


@kernel
def fixed_steps(
    tokens,
    attention,
    workload,
    arrival,
    hand,
    limits,
    state,
    final,
    global_batches,
    longest_first,
):
    """Make all whole windows that the backlog allows, up to MAX_STEPS steps.

    `attention` is what is balanced inside a window, (pieces,); limits[MAX_TOKENS] is the size of a
    bin. The other arguments and what is returned are those of `kernels.greedy_steps`.
    """
    num = limits[NUM]
    row = np.full(len(tokens), -1, np.int64)
    row_work = np.empty((state[LEFT] // num + 1) * num, np.int64)
    none = np.empty(0, np.int64)
    window = limits.copy()
    num_rows = 0
    stop = MORE
    while num_rows < limits[MAX_STEPS] * num:
        size = window_size(limits, state, global_batches)
        if size == 0 or (size < global_batches and not final):
            break
        window[NUM] = size * num
        window[INTAKE_TOKENS] = size * limits[INTAKE_TOKENS]
        state[STEP] += size - 1  # arrivals up to the window's last step
        complete = take_in(tokens, arrival, none, hand, none, window, state, final)
        lag = state[STEP] - state[INTAKE]
        state[STEP] -= size - 1
        if not complete:
            break
        if lag > max_lag(limits, size) and state[TAKEN] < len(tokens):
            stop = LAG
            break
        order = hand[: state[HAND]]
        order = fixed_order(tokens, arrival, order, limits, state, size, longest_first)
        slot = np.empty(len(order), np.int64)
        room = np.full(size * num, limits[MAX_TOKENS], np.int64)
        place(tokens, attention, order, window, slot, np.zeros(size * num, np.int64), room)
        work = work_of_bins(workload, order, slot, size * num)
        rank = by_work(work, first_pieces(order, slot, size * num))
        step = steps_by_arrival(tokens, arrival, order, slot, rank // num, size)
        for j in range(size * num):
            rank[j] = step[rank[j] // num] * num + rank[j] % num
        stop = out_of_bound(arrival, order, slot, rank, limits, state[STEP])
        if stop != MORE:
            break
        held = finish_step(tokens, order, slot, rank, hand, row, num_rows, state)
        for j in range(size * num):
            row_work[num_rows + rank[j]] = work[j]
        num_rows += size * num
        state[STEP] += size
        in_pace = state[INTAKE] >= state[STEP]
        state[WINDOW_STEPS] = 0 if in_pace else state[WINDOW_STEPS] + size
        state[WINDOW_TOKENS] = 0 if in_pace else state[WINDOW_TOKENS] + held
    return row, row_work[:num_rows], stop
