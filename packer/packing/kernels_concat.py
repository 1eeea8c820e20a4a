"""The compiled loop of `concat`: fill micro-batches in stream order and cut at their borders."""

from __future__ import annotations

import numpy as np

from packer.jit import kernel


@kernel
def cut_step(tokens, piece, offset, room, max_pieces, part_piece, part_start, part_stop, part_row):
    """Fill one step's micro-batches in stream order.

    The step begins with `piece`, of which `offset` tokens are gone. Each micro-batch takes
    room[j] >= 1 tokens, (num_micro_batches,), or closes at `max_pieces`. The parts go to the
    part_* arrays, (pieces + num_micro_batches,): piece, tokens [start, stop) of it, micro-batch.

    Returns:
        Number of parts, or -1 where the pieces do not close every micro-batch; then the piece and
        offset at which the next step begins.
    """
    count = 0
    for row in range(len(room)):
        free = room[row]
        held = 0
        while free > 0 and held < max_pieces:
            if piece == len(tokens):
                return -1, piece, offset
            length = min(free, tokens[piece] - offset)
            part_piece[count] = piece
            part_start[count] = offset
            part_stop[count] = offset + length
            part_row[count] = row
            count += 1
            held += 1
            free -= length
            offset += length
            if offset == tokens[piece]:
                piece += 1
                offset = np.int64(0)
    return count, piece, offset
