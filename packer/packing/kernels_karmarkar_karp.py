"""The compiled loop of `karmarkar_karp`: the largest differencing method over N sets."""

from __future__ import annotations

import numpy as np

from packer.jit import kernel
from packer.packing.kernels import (
    HAND,
    INTAKE_TOKENS,
    LEFT,
    LEFT_TOKENS,
    NUM,
    STEP,
    finish_step,
    first_pieces,
    take_in,
)
from packer.packing.kernels_order import by_work, stable_order


@kernel
def sift_down(heap, key, start, size):
    """Restore a heap whose place `start` may be too small: largest key first, ties to the lower."""
    place = start
    while True:
        best = place
        for child in (2 * place + 1, 2 * place + 2):
            if child < size:
                one, other = heap[child], heap[best]
                if key[one] > key[other] or (key[one] == key[other] and one < other):
                    best = child
        if best == place:
            return
        heap[place], heap[best] = heap[best], heap[place]
        place = best


@kernel
def differences(values, num, sums, head, tail, following):
    """Partition into `num` sets by largest differencing; returns the part that holds them.

    Every value begins as a partition of its own, in which the other sets are empty. Of the two
    partitions with the largest difference between their sets' sums, the fullest set of the one
    joins the emptiest of the other, and so on, until one is left. Sets are chains of values:
    `head` and `tail`, (values, num), and `following`, (values,), -1 at their ends. `sums`,
    (values, num), falls along a row and its last set counts as 0: only differences matter.
    """
    count = len(values)
    spread = np.empty(count, np.int64)
    heap = np.arange(count)
    sums[:] = 0
    head[:] = -1
    tail[:] = -1
    for index in range(count):
        sums[index, 0] = values[index]
        head[index, 0] = index
        tail[index, 0] = index
        following[index] = -1
        spread[index] = values[index] if num > 1 else 0
    for start in range(count // 2 - 1, -1, -1):
        sift_down(heap, spread, start, count)
    joined = np.empty(num, np.int64)
    heads = np.empty(num, np.int64)
    tails = np.empty(num, np.int64)
    for size in range(count - 1, 0, -1):
        one = heap[0]
        heap[0] = heap[size]
        sift_down(heap, spread, 0, size)
        other = heap[0]
        for j in range(num):
            mirror = num - 1 - j
            joined[j] = sums[one, j] + sums[other, mirror]
            heads[j] = head[one, j]
            tails[j] = tail[one, j]
            if heads[j] < 0:
                heads[j] = head[other, mirror]
                tails[j] = tail[other, mirror]
            elif head[other, mirror] >= 0:
                following[tails[j]] = head[other, mirror]
                tails[j] = tail[other, mirror]
        falling = stable_order(-joined)
        least = joined[falling[num - 1]]
        for j in range(num):
            sums[other, j] = joined[falling[j]] - least
            head[other, j] = heads[falling[j]]
            tail[other, j] = tails[falling[j]]
        spread[other] = sums[other, 0]
        sift_down(heap, spread, 0, size)
    return heap[0]


@kernel
def karmarkar_karp_steps(tokens, workload, arrival, hand, limits, state, final):
    """Partition the arrivals of every whole step, and later ones where they are fewer than N.

    The arguments and what is returned are those of `kernels.greedy_steps`.
    """
    num = limits[NUM]
    row = np.full(len(tokens), -1, np.int64)
    row_work = np.empty((state[LEFT] // num + 1) * num, np.int64)
    none = np.empty(0, np.int64)
    num_rows = 0
    while state[LEFT_TOKENS] >= limits[INTAKE_TOKENS] and state[LEFT] >= num:
        if not take_in(tokens, arrival, none, hand, none, limits, state, final):
            break
        order = hand[: state[HAND]].copy()
        sums = np.empty((len(order), num), np.int64)
        head = np.empty((len(order), num), np.int64)
        tail = np.empty((len(order), num), np.int64)
        following = np.empty(len(order), np.int64)
        last = differences(workload[order], num, sums, head, tail, following)
        slot = np.empty(len(order), np.int64)
        work = np.zeros(num, np.int64)
        for j in range(num):
            place = head[last, j]
            while place >= 0:
                slot[place] = j
                work[j] += workload[order[place]]
                place = following[place]
        rank = by_work(work, first_pieces(order, slot, num))
        finish_step(tokens, order, slot, rank, hand, row, num_rows, state)
        for j in range(num):
            row_work[num_rows + rank[j]] = work[j]
        num_rows += num
        state[STEP] += 1
    return row, row_work[:num_rows]
