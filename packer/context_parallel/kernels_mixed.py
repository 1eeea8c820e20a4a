"""Kernels of `mixed`: which pieces stay whole, and where ranks peel the others.

Costs are query-key pairs, tile-padded and weighted by the time they take; a KV token that a rank
receives is worth `exchange` of them. Parts of cut pieces are counted in tiles of 128 tokens; the
odd tokens at the ends of cut pieces all go to the outermost rank.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from packer.context_parallel.kernels import TILE, Grid, append_chunk, chunk_cost
from packer.context_parallel.kernels_whole import longest_first
from packer.jit import kernel
from packer.plan import Int64

WORTH_CUTTING = 0.002
"""Share of a micro-batch's time that cutting one more piece must save."""
GOOD_ENOUGH = 0.0002
"""Share by which time may exceed an even split before other orders are tried."""
NEAR = 4
"""How far apart ranks are swapped for another order."""


class Effort(NamedTuple):
    """What is tried."""

    at_least: int
    """Cut all pieces of at least so many tokens; 0 to search how many."""
    more_cuts: int
    """Pieces cut beyond those that no rank has room for, at most."""
    orders: int
    """Orders of ranks tried with each number of cut pieces."""


class Row(NamedTuple):
    """A micro-batch."""

    tokens: Int64
    """Of each piece, (pieces,)."""
    cost: Int64
    """Of each piece left whole, (pieces,)."""
    order: Int64
    """Pieces, longest first; the first k are cut."""
    owner: Int64
    """Written: the rank of each whole piece, -1 of the others, (pieces,)."""
    quota: Int64
    """Tokens of each rank, (cp_size,)."""
    exchange: int
    """Pairs that a received KV token is worth."""


class Ranks(NamedTuple):
    """What ranks have so far, int64 (cp_size,) each."""

    room: Int64
    """Tokens that a rank still takes."""
    load: Int64
    """Cost of what it has."""
    tiles: Int64
    """Whole tiles of cut pieces that it takes."""
    share: Int64
    """Those of the piece at hand."""
    order: Int64
    """Ranks, the outermost of cut pieces first."""


@kernel
def place_whole(row: Row, k: int, rate: int, ranks: Ranks) -> int:
    """Place all but the k longest pieces, longest first; returns the tokens without a place.

    A rank's room will be filled from cut pieces, at some `rate` of pairs a token; what it will have
    then is to be even. So a piece that costs less than that for its tokens goes where most is to be
    expected, one that costs more where least is.
    """
    left = 0
    for at in range(k, len(row.order)):
        piece = row.order[at]
        tokens = row.tokens[piece]
        sign = 1 if row.cost[piece] < rate * tokens else -1
        best, best_expected = -1, 0
        for rank in range(len(row.quota)):
            if ranks.room[rank] >= tokens:
                expected = sign * (ranks.load[rank] + rate * ranks.room[rank])
                if best < 0 or expected > best_expected:
                    best, best_expected = rank, expected
        row.owner[piece] = best
        if best < 0:
            left += tokens
        else:
            ranks.room[best] -= tokens
            ranks.load[best] += row.cost[piece]
    return left


@kernel
def order_ranks(rate: int, ranks: Ranks) -> None:
    """Outermost the ranks that are furthest from where the rate would take them.

    Outer ranks can choose between dear tails and cheap heads, inner ones take what is in between.
    """
    expected = ranks.load + rate * ranks.room
    away = np.abs(expected - int(expected.mean()))
    ranks.order[:] = np.argsort(-away, kind="mergesort")


@kernel
def shuffle_near(seed: int, ranks: Ranks) -> None:
    """Another order, in which ranks are not far from where they were; none for seed 0."""
    state = seed
    for i in range(len(ranks.order) - 1, 0, -1):
        if seed > 0:
            state = (state * 1_103_515_245 + 12_345) % (1 << 31)  # ANSI C's example generator
            j = max(0, i - (state >> 16) % NEAR)
            ranks.order[i], ranks.order[j] = ranks.order[j], ranks.order[i]


@kernel
def reserve(row: Row, k: int, left: int, ranks: Ranks) -> int:
    """Split ranks' room in whole tiles of cut pieces and the rest, which the stream fills.

    The stream is the pieces without a place, `left` tokens, and then the head of the shortest cut
    piece. Returns that head's tokens, a multiple of a tile, or -1 where it does not work out.
    """
    ends = 0
    for at in range(k):
        ends += row.tokens[row.order[at]] % TILE
    outermost = ranks.order[0]
    if ranks.room[outermost] < ends:
        return -1
    ranks.room[outermost] -= ends
    stream = 0
    for rank in range(len(row.quota)):
        ranks.tiles[rank] = ranks.room[rank] // TILE
        stream += ranks.room[rank] % TILE
    while stream < left:
        widest = int(np.argmax(ranks.tiles))
        if ranks.tiles[widest] == 0:
            return -1
        ranks.tiles[widest] -= 1
        stream += TILE
    head = stream - left
    return head if head <= row.tokens[row.order[k - 1]] // TILE * TILE else -1


@kernel
def put(chunks, count, rank, piece, start, stop, grid, ranks):
    """Give a chunk to a rank; returns the new count."""
    ranks.load[rank] += chunk_cost(start, stop, grid)
    chunks[count, 0] = rank
    chunks[count, 1] = piece
    chunks[count, 2] = start
    chunks[count, 3] = stop
    return count + 1


@kernel
def pour(row, k, head, grid, ranks, chunks, count):
    """Fill what is not for whole tiles from the stream, rank by rank; returns the new count."""
    rank, room = 0, ranks.room[0] - ranks.tiles[0] * TILE
    for at in range(k, len(row.order) + 1):
        piece = row.order[at] if at < len(row.order) else row.order[k - 1]
        stop = row.tokens[piece] if at < len(row.order) else head
        if at < len(row.order) and row.owner[piece] >= 0:
            continue
        start = 0
        while start < stop:
            while room == 0:
                rank += 1
                room = ranks.room[rank] - ranks.tiles[rank] * TILE
            taken = min(room, stop - start)
            count = put(chunks, count, rank, piece, start, start + taken, grid, ranks)
            ranks.load[rank] += row.exchange * start
            start += taken
            room -= taken
    return count


@kernel
def share_out(tiles: int, total: int, turn: int, ranks: Ranks) -> None:
    """Deal a piece's tiles by what ranks still take, rounded along the order from `turn` on."""
    before, dealt = 0, 0
    for i in range(len(ranks.order)):
        rank = ranks.order[(i + turn) % len(ranks.order)]
        before += ranks.tiles[rank]
        until = before * tiles // total if total > 0 else 0
        ranks.share[rank] = until - dealt
        dealt = until


@kernel
def heads_of(low: int, high: int, tiles: int, want: int, grid: Grid) -> int:
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
def peel(row, piece, low, high, want, grid, rank, ranks, chunks, count):
    """Give a rank its share of tokens [low, high) of a piece, for about `want` pairs.

    Returns the new count and what is left of the piece.
    """
    tiles, odd = ranks.share[rank], high % TILE
    last = high // TILE
    if tiles == 0 and odd == 0:
        return count, low, high
    if tiles == last - low // TILE:
        ranks.load[rank] += row.exchange * low
        return put(chunks, count, rank, piece, low, high, grid, ranks), high, high
    heads = heads_of(low, high, tiles, want, grid)
    start = (last - tiles + heads) * TILE
    if heads > 0:
        count = put(chunks, count, rank, piece, low, low + heads * TILE, grid, ranks)
    if high > start:
        count = put(chunks, count, rank, piece, start, high, grid, ranks)
    reach = high if high > start else low + heads * TILE
    ranks.load[rank] += row.exchange * (reach - tiles * TILE - odd)
    return count, low + heads * TILE, start


@kernel
def cut_long(row, k, head, turn, grid, ranks, chunks, count):
    """Peel the k longest pieces, longest first; returns the new count.

    Each piece takes ranks as far towards an even end as it is a part of the cost that is left; the
    last one all the way, and there what went wrong with outer ranks is made good by inner ones.
    """
    cp_size = len(row.quota)
    rest = 0
    for at in range(k):
        rest += row.cost[row.order[at]]
    if head > 0:
        rest -= chunk_cost(0, head, grid)
    total = int(ranks.tiles.sum())
    for at in range(k):
        piece = row.order[at]
        low, high = head if at == k - 1 else 0, row.tokens[piece]
        tiles = (high - low) // TILE
        share_out(tiles, total, turn, ranks)
        part = row.cost[piece] / rest if at < k - 1 else 1.0
        goal = (rest + int(ranks.load.sum())) // cp_size
        held, outside = int(ranks.load.sum()), 0
        for i in range(cp_size):
            rank, inner = ranks.order[i], cp_size - i
            if at < k - 1:
                even = row.cost[piece] * ranks.share[rank] // max(1, tiles)
                rate = rest * ranks.tiles[rank] // max(1, total)
                want = even + int(part * (goal - ranks.load[rank] - rate))
            else:
                middle = chunk_cost(low, high, grid) if high > low else 0
                to_come = inner * high - (tiles - outside) * TILE
                ahead = middle + held + row.exchange * to_come
                receives = row.exchange * (high - ranks.share[rank] * TILE)
                want = ahead // inner - ranks.load[rank] - receives
            held -= ranks.load[rank]
            outside += ranks.share[rank]
            count, low, high = peel(row, piece, low, high, want, grid, rank, ranks, chunks, count)
            ranks.tiles[rank] -= ranks.share[rank]
        total -= tiles
        rest -= row.cost[piece]
    return count


@kernel
def keep_whole(row: Row, chunks: np.ndarray) -> int:
    """The whole pieces as chunks; returns how many."""
    count = 0
    for piece in range(len(row.owner)):
        if row.owner[piece] >= 0:
            chunks[count, 0] = row.owner[piece]
            chunks[count, 1] = piece
            chunks[count, 2] = 0
            chunks[count, 3] = row.tokens[piece]
            count += 1
    return count


@kernel
def begin(row: Row, k: int, ranks: Ranks) -> tuple[int, int]:
    """Ranks as they are once the whole pieces are placed; returns the rate and what has no place."""
    tokens, cost = 0, 0
    for at in range(k):
        piece = row.order[at]
        tokens += row.tokens[piece]
        cost += row.cost[piece]
        row.owner[piece] = -1
    rate = cost // tokens if tokens > 0 else 0
    ranks.room[:] = row.quota
    ranks.load[:] = 0
    return rate, place_whole(row, k, rate, ranks)


@kernel
def attempt(row, k, rate, left, turn, grid, ranks, chunks):
    """Cut the k longest pieces, the others being placed; returns how many chunks, -1 for no plan."""
    order_ranks(rate, ranks)
    shuffle_near(turn, ranks)
    ranks.tiles[:] = 0
    head = 0
    if k > 0:
        head = reserve(row, k, left, ranks)
        if head < 0:
            return -1
    count = keep_whole(row, chunks)
    count = pour(row, k, head, grid, ranks, chunks, count)
    return cut_long(row, k, head, turn, grid, ranks, chunks, count)


@kernel
def search_row(row, first_k, last_k, half_crossover, effort, grid, ranks, chunks, best):
    """Write the best chunks found to `best`; returns how many.

    Fewer cuts come first, and more only where they save enough time; an even split of the pieces
    uncut is the least that there can be.
    """
    placed = Ranks(ranks.room.copy(), ranks.load.copy(), ranks.tiles, ranks.share, ranks.order)
    linear = row.quota[0] * half_crossover
    floor = linear + row.cost.sum() / len(row.quota)
    found, least = -1, 0.0
    for k in range(first_k, last_k + 1):
        bar = least * (1.0 - WORTH_CUTTING)
        if found >= 0 and bar <= floor:
            break
        rate, left = begin(row, k, placed)
        for turn in range(effort.orders):
            ranks.room[:] = placed.room
            ranks.load[:] = placed.load
            count = attempt(row, k, rate, left, turn, grid, ranks, chunks)
            if count < 0:
                break
            time = linear + int(ranks.load.max())
            if found < 0 or time < bar:
                found, least, bar = count, time, time
                best[:count] = chunks[:count]
            if found >= 0 and least <= floor * (1.0 + GOOD_ENOUGH):
                break
    return found


@kernel
def sort_chunks(found: np.ndarray, chunks: np.ndarray, first: int) -> int:
    """Append the row's chunks in order, touching ones joined; returns the new count."""
    order = np.argsort(found[:, 2], kind="mergesort")
    order = order[np.argsort(found[order, 1], kind="mergesort")]
    order = order[np.argsort(found[order, 0], kind="mergesort")]
    count = first
    for i in order:
        count = append_chunk(
            chunks, first, count, found[i, 0], found[i, 1], found[i, 2], found[i, 3]
        )
    return count


@kernel
def cut_mixed(
    piece_tokens: Int64,
    row_offsets: Int64,
    cp_size: int,
    crossovers: Int64,
    exchange: Int64,
    grid: Grid,
    effort: Effort,
    capacities: Int64,
    chunks: np.ndarray,
    chunk_offsets: Int64,
) -> None:
    """Plan every row.

    Args:
        piece_tokens: (pieces,).
        row_offsets: (rows + 1,).
        cp_size: ranks.
        crossovers: L* of each row, (rows,).
        exchange: pairs that a received KV token is worth, (rows,).
        grid: throughput.
        effort: what is tried.
        capacities: most chunks of each row (`mixed.most_chunks`), (rows,).
        chunks: written, capacity at least their sum.
        chunk_offsets: written, (rows + 1,).
    """
    room = np.zeros((5, cp_size), np.int64)
    ranks = Ranks(room[0], room[1], room[2], room[3], room[4])
    quota = np.zeros(cp_size, np.int64)
    count = 0
    chunk_offsets[0] = 0
    for j in range(len(row_offsets) - 1):
        tokens = piece_tokens[row_offsets[j] : row_offsets[j + 1]]
        total = int(tokens.sum())
        quota[:] = total // cp_size
        quota[: total % cp_size] += 1
        cost = np.empty_like(tokens)
        for i in range(len(tokens)):
            cost[i] = chunk_cost(0, tokens[i], grid)
        order = longest_first(tokens)
        row = Row(tokens, cost, order, np.full_like(tokens, -1), quota, exchange[j])
        tried, best = np.empty((capacities[j], 4), np.int64), np.empty((capacities[j], 4), np.int64)
        if effort.at_least > 0:
            first_k = last_k = int((tokens >= effort.at_least).sum())
        else:
            first_k = int((tokens > quota[0]).sum())
            last_k = min(len(tokens), first_k + effort.more_cuts)
        half = min(crossovers[j], 1 << 40) / 2
        found = search_row(row, first_k, last_k, half, effort, grid, ranks, tried, best)
        while found < 0:  # fewer cuts, down to none, which always works out
            first_k -= 1
            found = search_row(row, first_k, first_k, half, effort, grid, ranks, tried, best)
        count = sort_chunks(best[:found], chunks, count)
        chunk_offsets[j + 1] = count
