"""Compiled sorting: of keys, of slots by work, of pieces by row."""

from __future__ import annotations

import numpy as np

from packer.jit import kernel


@kernel
def stable_order(key):
    """Indices that sort `key`, ties in order: a merge sort, bottom up.

    What np.argsort(key, kind="stable") gives; Numba takes three seconds to compile that one.
    """
    size = len(key)
    order = np.arange(size)
    merged = np.empty_like(order)
    width = 1
    while width < size:
        for start in range(0, size, 2 * width):
            middle = min(start + width, size)
            stop = min(start + 2 * width, size)
            left = start
            right = middle
            for out in range(start, stop):
                if right == stop or (left < middle and key[order[left]] <= key[order[right]]):
                    merged[out] = order[left]
                    left += 1
                else:
                    merged[out] = order[right]
                    right += 1
        order, merged = merged, order
        width *= 2
    return order


@kernel
def sort_ascending(indices):
    """Sort in place."""
    before = indices.copy()
    order = stable_order(before)
    for place in range(len(indices)):
        indices[place] = before[order[place]]


@kernel
def in_groups(candidates, group, key, num_groups):
    """Candidates group after group, inside a group by rising key, ties in order: (candidates,).

    `group`, from 0, and `key` are of each candidate.
    """
    starts = np.zeros(num_groups + 1, np.int64)
    for place in range(len(candidates)):
        starts[group[place] + 1] += 1
    for number in range(num_groups):
        starts[number + 1] += starts[number]
    order = np.empty_like(candidates)
    for place in stable_order(key):
        order[starts[group[place]]] = candidates[place]
        starts[group[place]] += 1
    return order


@kernel
def by_work(work, first):
    """Slots in falling workload, ties by first position: the rank of each."""
    order = stable_order(first)
    order = order[stable_order(-work[order])]
    rank = np.empty_like(order)
    for j in range(len(order)):
        rank[order[j]] = j
    return rank


@kernel
def gather(row, num_rows):
    """Pieces row by row, ascending inside a row.

    Returns:
        order: indices of the placed pieces, (placed,).
        offsets: of the rows in it, (num_rows + 1,).
    """
    offsets = np.zeros(num_rows + 1, np.int64)
    for index in range(len(row)):
        if row[index] >= 0:
            offsets[row[index] + 1] += 1
    for j in range(num_rows):
        offsets[j + 1] += offsets[j]
    cursor = offsets[:-1].copy()
    order = np.empty(offsets[-1], np.int64)
    for index in range(len(row)):
        if row[index] >= 0:
            order[cursor[row[index]]] = index
            cursor[row[index]] += 1
    return order, offsets
