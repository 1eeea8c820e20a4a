"""Compiled end of a window's search: pieces, whole, into the micro-batches of their steps."""

from __future__ import annotations

import numpy as np

from packer.jit import kernel
from packer.packing.kernels import MAX_PIECES, MAX_TOKENS, NUM, place_one
from packer.packing.kernels_order import by_work, gather


@kernel
def settle(tokens, workload, step, order, limits, num_steps):
    """Put the pieces of each step into its micro-batches, each to the one of least work with room.

    Pieces are placed in `order`, (pieces,), step by step. What finds no room goes to the next step,
    in its own turn there; what is left over after the last one goes to the latest step that has
    room. Where a piece moves, `step` is changed.

    Returns:
        row: of each piece, (pieces,).
        row_work: of each row.
        whole: whether every piece found room and no micro-batch stayed empty.
    """
    num = limits[NUM]
    slot = np.full(len(tokens), -1, np.int64)
    work = np.zeros((num_steps, num), np.int64)
    room = np.full((num_steps, num), limits[MAX_TOKENS], np.int64)
    free = np.full((num_steps, num), limits[MAX_PIECES], np.int64)
    row_work = np.zeros(num_steps * num, np.int64)
    by_step, offsets = gather(step[order], num_steps)  # places in `order`, step by step
    over = np.empty(len(tokens), np.int64)  # places in `order` of what found no room, ascending
    num_over = 0
    for number in range(num_steps):
        kept = 0
        waiting = 0
        at = offsets[number]
        came = over[:num_over].copy()
        while waiting < num_over or at < offsets[number + 1]:
            if at == offsets[number + 1] or (waiting < num_over and came[waiting] < by_step[at]):
                place = came[waiting]
                waiting += 1
            else:
                place = by_step[at]
                at += 1
            piece = order[place]
            slot[piece] = place_one(
                tokens[piece], workload[piece], work[number], room[number], free[number]
            )
            if slot[piece] >= 0:
                step[piece] = number
            else:
                over[kept] = place
                kept += 1
        num_over = kept
    for place in over[:num_over]:
        piece = order[place]
        number = num_steps - 1
        while slot[piece] < 0 and number > 0:
            number -= 1
            slot[piece] = place_one(
                tokens[piece], workload[piece], work[number], room[number], free[number]
            )
        if slot[piece] < 0:
            return slot, row_work, False
        step[piece] = number
    first = np.full((num_steps, num), len(tokens), np.int64)
    for piece in range(len(tokens) - 1, -1, -1):
        first[step[piece], slot[piece]] = piece
    if first.max() == len(tokens):
        return slot, row_work, False
    row = np.empty_like(slot)
    rank = np.empty((num_steps, num), np.int64)
    for number in range(num_steps):
        rank[number] = by_work(work[number], first[number])
        for j in range(num):
            row_work[number * num + rank[number, j]] = work[number, j]
    for piece in range(len(tokens)):
        row[piece] = step[piece] * num + rank[step[piece], slot[piece]]
    return row, row_work, True
