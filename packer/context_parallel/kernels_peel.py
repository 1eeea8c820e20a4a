"""Kernels of `mixed` that cut: ranks peel long pieces from outside in.

Costs are query-key pairs, tile-padded and weighted by the time they take; a KV token that a rank
receives is worth `exchange` of them. Parts of cut pieces are counted in tiles of 128 tokens; the
odd tokens at the ends of cut pieces all go to the outermost rank.

A micro-batch is an int64 table `pieces` (4, pieces), what its ranks have another one, `ranks`
(7, cp_size); the constants below name their rows.
"""

from __future__ import annotations

import numpy as np

from packer.context_parallel.kernels import TILE, chunk_cost
from packer.jit import kernel

TOKENS, COST, ORDER, OWNER = 0, 1, 2, 3
"""Of each piece: its tokens and what it costs whole; pieces, longest first, of which the first k
are cut; the rank of each whole piece, -1 of the others."""
QUOTA, ROOM, LOAD, TILES, SHARE, AWAY, TURN = 0, 1, 2, 3, 4, 5, 6
"""Of each rank: the tokens it is to have, and still takes; the cost of what it has; the whole tiles
of cut pieces that it takes, and those of the piece at hand; how far from an even end its load would
be. In TURN ranks stand in the order of peeling, the outermost first."""


@kernel
def reserve(pieces: np.ndarray, k: int, left: int, ranks: np.ndarray) -> int:
    """Split ranks' room in whole tiles of cut pieces and the rest, which the stream fills.

    The stream is the pieces without a place, `left` tokens, and then the head of the shortest cut
    piece. Returns that head's tokens, a multiple of a tile, or -1 where it does not work out.
    """
    ends = 0
    for at in range(k):
        ends += pieces[TOKENS, pieces[ORDER, at]] % TILE
    outermost, cp_size = ranks[TURN, 0], ranks.shape[1]
    if ranks[ROOM, outermost] < ends:
        return -1
    ranks[ROOM, outermost] -= ends
    stream = 0
    for rank in range(cp_size):
        ranks[TILES, rank] = ranks[ROOM, rank] // TILE
        stream += ranks[ROOM, rank] % TILE
    while stream < left:
        widest = 0
        for rank in range(cp_size):
            if ranks[TILES, rank] > ranks[TILES, widest]:
                widest = rank
        if ranks[TILES, widest] == 0:
            return -1
        ranks[TILES, widest] -= 1
        stream += TILE
    head = stream - left
    return head if head <= pieces[TOKENS, pieces[ORDER, k - 1]] // TILE * TILE else -1


@kernel
def put(chunks, count, rank, piece, start, stop, cost, ranks):
    """Give a chunk to a rank; returns the new count."""
    ranks[LOAD, rank] += cost
    chunks[count, 0] = rank
    chunks[count, 1] = piece
    chunks[count, 2] = start
    chunks[count, 3] = stop
    return count + 1


@kernel
def pour(pieces, exchange, k, head, grid, ranks, chunks, count):
    """Fill what is not for whole tiles from the stream, rank by rank; returns the new count.

    The outermost rank comes first and so not last: where the stream ends in a cut piece that rank
    goes on with whole tiles, and were both its own, its broken tile would displace all the others.
    """
    num_pieces, i = pieces.shape[1], 0
    rank = ranks[TURN, 0]
    room = ranks[ROOM, rank] - ranks[TILES, rank] * TILE
    for at in range(k, num_pieces + 1):
        if at < num_pieces:
            piece = pieces[ORDER, at]
            stop = pieces[TOKENS, piece] if pieces[OWNER, piece] < 0 else 0
        else:
            piece, stop = pieces[ORDER, max(0, k - 1)], head
        start = 0
        while start < stop:
            while room == 0:
                i += 1
                rank = ranks[TURN, i]
                room = ranks[ROOM, rank] - ranks[TILES, rank] * TILE
            end = min(start + room, stop)
            cost = chunk_cost(start, end, grid) + exchange * start
            count = put(chunks, count, rank, piece, start, end, cost, ranks)
            room -= end - start
            start = end
    return count


@kernel
def share_out(tiles: int, total: int, turn: int, ranks: np.ndarray) -> None:
    """Deal a piece's tiles by what ranks still take, rounded along their order from `turn` on."""
    before, dealt, cp_size = 0, 0, ranks.shape[1]
    for i in range(cp_size):
        rank = ranks[TURN, (i + turn) % cp_size]
        before += ranks[TILES, rank]
        until = before * tiles // total if total > 0 else 0
        ranks[SHARE, rank] = until - dealt
        dealt = until


@kernel
def heads_of(low: int, high: int, tiles: int, want: int, grid: np.ndarray) -> int:
    """How many of `tiles` to take from the head of tokens [low, high), the rest from the tail.

    A tile moved from tail to head saves the same wherever it is, but for the weights; so there is
    one step to the answer, and one to correct it. `low` is a multiple of a tile.
    """
    last = high // TILE
    step = (last - low // TILE - tiles) * TILE * TILE
    heads = 0
    for _ in range(2):
        start = (last - tiles + heads) * TILE
        cost = chunk_cost(start, high, grid) if high > start else 0
        if heads > 0:
            cost += chunk_cost(low, low + heads * TILE, grid)
        heads = min(tiles, max(0, heads + (cost - want + step // 2) // step))
    return heads


@kernel
def peel(piece, exchange, low, high, want, grid, rank, ranks, chunks, count):
    """Give a rank its share of tokens [low, high) of a piece, for about `want` pairs.

    Returns the new count and what is left of the piece.
    """
    tiles, odd, last = ranks[SHARE, rank], high % TILE, high // TILE
    if low == high or (tiles == 0 and odd == 0):
        return count, low, high
    if tiles == last - low // TILE:
        cost = chunk_cost(low, high, grid) + exchange * low
        return put(chunks, count, rank, piece, low, high, cost, ranks), high, high
    heads = heads_of(low, high, tiles, want, grid)
    head, start = low + heads * TILE, (last - tiles + heads) * TILE
    reach = high if high > start else head
    ranks[LOAD, rank] += exchange * (reach - tiles * TILE - odd)
    if head > low:
        cost = chunk_cost(low, head, grid)
        count = put(chunks, count, rank, piece, low, head, cost, ranks)
    if high > start:
        cost = chunk_cost(start, high, grid)
        count = put(chunks, count, rank, piece, start, high, cost, ranks)
    return count, head, start


@kernel
def part_of(value: int, share: int, total: int) -> int:
    """`value` x share / total, rounded down; the product itself need not fit 64 bits."""
    return value // total * share + value % total * share // total


@kernel
def cut_long(pieces, exchange, k, head, turn, grid, ranks, chunks, count):
    """Peel the k longest pieces, longest first; returns the new count.

    Each piece takes ranks as far towards an even end as it is a part of the cost that is left; the
    last one all the way, and there what went wrong with outer ranks is made good by inner ones.
    """
    cp_size = ranks.shape[1]
    rest, total = 0, 0
    for at in range(k):
        rest += pieces[COST, pieces[ORDER, at]]
    if head > 0:
        rest -= chunk_cost(0, head, grid)
    for rank in range(cp_size):
        total += ranks[TILES, rank]
    for at in range(k):
        piece, is_last = pieces[ORDER, at], at == k - 1
        low, high, cost = head if is_last else 0, pieces[TOKENS, piece], pieces[COST, piece]
        tiles, outside, held = (high - low) // TILE, 0, 0
        share_out(tiles, total, turn, ranks)
        for rank in range(cp_size):
            held += ranks[LOAD, rank]
        goal = (rest + held) // cp_size
        for i in range(cp_size):
            rank, inner = ranks[TURN, i], cp_size - i
            load, share = ranks[LOAD, rank], ranks[SHARE, rank]
            if is_last:
                middle = chunk_cost(low, high, grid) if high > low else 0
                to_come = inner * high - (tiles - outside) * TILE
                ahead = middle + held + exchange * to_come
                want = ahead // inner - load - exchange * (high - share * TILE)
            else:
                even = part_of(cost, share, max(1, tiles))
                rate = part_of(rest, ranks[TILES, rank], max(1, total))
                want = even + int((cost / rest) * (goal - load - rate))
            held -= load
            outside += share
            count, low, high = peel(
                piece, exchange, low, high, want, grid, rank, ranks, chunks, count
            )
            ranks[TILES, rank] -= share
        total -= tiles
        rest -= cost
    return count
