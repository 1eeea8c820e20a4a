"""Kernels of `mixed` that even out what peeling leaves: ranks trade single tiles of cut pieces.

The work of a tile is its place in its piece, so the slowest rank and another one come closer by any
number of tiles when one gives a late tile for an early one.
"""

from __future__ import annotations

import numpy as np

from packer.context_parallel.kernels import TILE, chunk_cost
from packer.context_parallel.kernels_peel import LOAD, TOKENS
from packer.jit import kernel

FEW = 100
"""Area of a rank, in tiles, of which one is a difference."""


@kernel
def is_cut(pieces: np.ndarray, chunk: np.ndarray) -> bool:
    """Whether it is a part of a piece with whole tiles of its own to give."""
    tokens = chunk[3] - chunk[2]
    return chunk[2] % TILE == 0 and tokens >= TILE and tokens < pieces[TOKENS, chunk[1]]


@kernel
def reach_of(chunks: np.ndarray, count: int, rank: int, piece: int) -> int:
    """Keys of a piece that a rank needs."""
    reach = 0
    for i in range(count):
        if chunks[i, 0] == rank and chunks[i, 1] == piece:
            reach = max(reach, chunks[i, 3])
    return reach


@kernel
def best_trade(pieces, exchange, slowest, last, ranks, chunks, count):
    """The trade of the slowest rank after which the slower of the two is fastest.

    Where received keys count, only tiles whose keys the ranks need anyway are traded. A rank of few
    tiles may also change places with another than the `last`, for what that one can trade then.

    Returns:
        Its chunk, -1 where there is no trade, the other rank's chunk, the tile that the one loses,
        and the tile that it gets.
    """
    load = ranks[LOAD, slowest]
    least = load + (1 if load < FEW * TILE * TILE else 0)
    giver, taker, late, early = -1, -1, 0, 0
    for a in range(count):
        if chunks[a, 0] != slowest or not is_cut(pieces, chunks[a]):
            continue
        first_a, stop_a = chunks[a, 2] // TILE, chunks[a, 3] // TILE
        for b in range(count):
            other = chunks[b, 0]
            gap = (load - ranks[LOAD, other]) // (TILE * TILE)
            if other == slowest or gap < 1 or not is_cut(pieces, chunks[b]):
                continue
            first_b, stop_b = chunks[b, 2] // TILE, chunks[b, 3] // TILE
            apart = min(max((gap + 1) // 2, first_a - stop_b + 1), stop_a - 1 - first_b)
            saved = apart * TILE * TILE
            slower = max(load - saved, ranks[LOAD, other] + saved)
            if apart < 1 or slower >= least or (slower == load and other == last):
                continue
            tile = max(first_a, first_b + apart)
            if exchange > 0:
                if reach_of(chunks, count, other, chunks[a, 1]) < (tile + 1) * TILE:
                    continue
                if reach_of(chunks, count, slowest, chunks[b, 1]) < (tile - apart + 1) * TILE:
                    continue
            least, giver, taker, late, early = slower, a, b, tile, tile - apart
    return giver, taker, late, early


@kernel
def give(chunks, count, i, tile, to, ranks, grid):
    """Take a tile out of chunk i and give it to a rank; returns the new count."""
    rank, piece, start, stop = chunks[i, 0], chunks[i, 1], chunks[i, 2], chunks[i, 3]
    before, after = tile * TILE, (tile + 1) * TILE
    ranks[LOAD, rank] -= chunk_cost(start, stop, grid)
    ranks[LOAD, to] += chunk_cost(before, after, grid)
    chunks[i, 0] = to
    chunks[i, 2] = before
    chunks[i, 3] = after
    for begin, end in ((start, before), (after, stop)):
        if begin < end:
            ranks[LOAD, rank] += chunk_cost(begin, end, grid)
            chunks[count, 0] = rank
            chunks[count, 1] = piece
            chunks[count, 2] = begin
            chunks[count, 3] = end
            count += 1
    return count


@kernel
def trade_tiles(pieces, exchange, most, ranks, grid, chunks, count):
    """Trade up to `most` times, as long as the slowest rank gets faster; returns the new count.

    Each trade adds up to four chunks.
    """
    last = -1
    for _ in range(most):
        slowest = 0
        for rank in range(ranks.shape[1]):
            if ranks[LOAD, rank] > ranks[LOAD, slowest]:
                slowest = rank
        giver, taker, late, early = best_trade(
            pieces, exchange, slowest, last, ranks, chunks, count
        )
        if giver < 0:
            break
        was, other, last = ranks[LOAD, slowest], chunks[taker, 0], slowest
        count = give(chunks, count, giver, late, other, ranks, grid)
        count = give(chunks, count, taker, early, slowest, ranks, grid)
        if max(ranks[LOAD, slowest], ranks[LOAD, other]) > was:
            break
    return count
