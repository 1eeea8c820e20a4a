"""The compiled loop of `ffd` and `bfd`: bins opened as needed."""

from __future__ import annotations

import numpy as np

from packer.jit import kernel
from packer.packing.kernels import (
    HAND,
    HAND_TOKENS,
    LEFT,
    MAX_PIECES,
    MAX_TOKENS,
    NUM,
    STEP,
    TAKEN,
    finish_step,
    first_pieces,
)
from packer.packing.kernels_order import by_work, stable_order


@kernel
def fit(tokens, order, limits, best_fit, slot):
    """Put each piece into a bin with room, a new one where there is none; returns how many bins.

    The bin is the first that has room, or with `best_fit` the first of those with least room.
    """
    room = np.empty(len(order), np.int64)
    free = np.empty(len(order), np.int64)
    num_bins = 0
    for rank in range(len(order)):
        length = tokens[order[rank]]
        chosen = -1
        for j in range(num_bins):
            if room[j] >= length and free[j] > 0 and (chosen < 0 or room[j] < room[chosen]):
                chosen = j
                if not best_fit:
                    break
        if chosen < 0:
            chosen = num_bins
            num_bins += 1
            room[chosen] = limits[MAX_TOKENS]
            free[chosen] = limits[MAX_PIECES]
        room[chosen] -= length
        free[chosen] -= 1
        slot[rank] = chosen
    return num_bins


@kernel
def fit_steps(tokens, workload, hand, limits, state, final, window_tokens, best_fit):
    """Fill windows of at least that many tokens, or the stream's rest; emit their whole steps.

    The other arguments and what is returned are those of `kernels.greedy_steps`. The pieces of the
    last bins, fewer than a step has, go back to the hand.
    """
    num = limits[NUM]
    row = np.full(len(tokens), -1, np.int64)
    row_work = np.empty((state[LEFT] // num + 1) * num, np.int64)
    num_rows = 0
    while True:
        while state[TAKEN] < len(tokens) and state[HAND_TOKENS] < window_tokens:
            hand[state[HAND]] = state[TAKEN]
            state[HAND] += 1
            state[HAND_TOKENS] += tokens[state[TAKEN]]
            state[TAKEN] += 1
        if state[HAND_TOKENS] < window_tokens and not final:
            break
        order = hand[: state[HAND]].copy()
        order = order[stable_order(-tokens[order])]
        slot = np.empty(len(order), np.int64)
        num_steps = fit(tokens, order, limits, best_fit, slot) // num
        if num_steps == 0:
            break
        rank = np.empty(num_steps * num, np.int64)
        work = np.zeros(num_steps * num, np.int64)
        for place in range(len(order)):
            if slot[place] >= len(work):
                slot[place] = -1
            else:
                work[slot[place]] += workload[order[place]]
        first = first_pieces(order, slot, len(work))
        for step in range(0, len(work), num):
            rank[step : step + num] = step + by_work(
                work[step : step + num], first[step : step + num]
            )
        finish_step(tokens, order, slot, rank, hand, row, num_rows, state)
        for j in range(len(work)):
            row_work[num_rows + rank[j]] = work[j]
        num_rows += len(work)
        state[STEP] += num_steps
    return row, row_work[:num_rows]
