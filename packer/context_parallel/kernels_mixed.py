"""Kernels of `mixed`: which pieces stay whole, and which cuts are best."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from packer.context_parallel.kernels import chunk_cost
from packer.context_parallel.kernels_peel import (
    AWAY,
    COST,
    LOAD,
    ORDER,
    OWNER,
    QUOTA,
    ROOM,
    TILES,
    TOKENS,
    TURN,
    cut_long,
    pour,
    reserve,
)
from packer.context_parallel.kernels_trade import trade_tiles
from packer.jit import kernel
from packer.plan import Int64

WORTH_CUTTING = 0.002
"""Share of a micro-batch's time that cutting one more piece must save."""
GOOD_ENOUGH = 0.0002
"""Share by which time may exceed an even split before other orders are tried."""
TRADES = 2
"""Tiles traded at most, a rank."""
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


@kernel
def place_whole(pieces: np.ndarray, k: int, rate: int, ranks: np.ndarray) -> int:
    """Place all but the k longest pieces, longest first; returns the tokens without a place.

    A rank's room will be filled from cut pieces, at some `rate` of pairs a token; what it will have
    then is to be even. So a piece that costs less than that for its tokens goes where most is to be
    expected, one that costs more where least is.
    """
    left = 0
    for at in range(k, pieces.shape[1]):
        piece = pieces[ORDER, at]
        tokens, cost = pieces[TOKENS, piece], pieces[COST, piece]
        sign = 1 if cost < rate * tokens else -1
        best, best_expected = -1, 0
        for rank in range(ranks.shape[1]):
            if ranks[ROOM, rank] >= tokens:
                expected = sign * (ranks[LOAD, rank] + rate * ranks[ROOM, rank])
                if best < 0 or expected > best_expected:
                    best, best_expected = rank, expected
        pieces[OWNER, piece] = best
        if best < 0:
            left += tokens
        else:
            ranks[ROOM, best] -= tokens
            ranks[LOAD, best] += cost
    return left


@kernel
def sort_turns(ranks: np.ndarray) -> None:
    """Put ranks in order, the one furthest away first, the first of equals; Shell's sort."""
    gap = ranks.shape[1] // 2
    while gap > 0:
        for i in range(gap, ranks.shape[1]):
            rank = ranks[TURN, i]
            away = ranks[AWAY, rank]
            while i >= gap:
                before = ranks[TURN, i - gap]
                if ranks[AWAY, before] > away or (ranks[AWAY, before] == away and before < rank):
                    break
                ranks[TURN, i] = before
                i -= gap
            ranks[TURN, i] = rank
        gap //= 2


@kernel
def copy_rows(source: np.ndarray, target: np.ndarray, first: int, count: int) -> None:
    """The first `count` rows of a table, to the rows of another from `first` on."""
    for i in range(count):
        for column in range(source.shape[1]):
            target[first + i, column] = source[i, column]


@kernel
def begin(pieces: np.ndarray, k: int, ranks: np.ndarray) -> int:
    """Cut the k longest pieces and place the others; returns the tokens without a place.

    Ranks are put in order: outermost those that are furthest from an even end. Outer ranks can
    choose between dear tails and cheap heads, inner ones take what is in between.
    """
    tokens, cost, cp_size = 0, 0, ranks.shape[1]
    for at in range(k):
        piece = pieces[ORDER, at]
        tokens += pieces[TOKENS, piece]
        cost += pieces[COST, piece]
        pieces[OWNER, piece] = -1
    rate = cost // tokens if tokens > 0 else 0
    for rank in range(cp_size):
        ranks[ROOM, rank] = ranks[QUOTA, rank]
        ranks[LOAD, rank] = 0
    left = place_whole(pieces, k, rate, ranks)
    mean = 0
    for rank in range(cp_size):
        ranks[AWAY, rank] = ranks[LOAD, rank] + rate * ranks[ROOM, rank]
        mean += ranks[AWAY, rank] // cp_size
    for rank in range(cp_size):
        ranks[AWAY, rank] = abs(ranks[AWAY, rank] - mean)
        ranks[TURN, rank] = rank
    sort_turns(ranks)
    return left


@kernel
def shuffle_near(seed: int, ranks: np.ndarray) -> None:
    """Another order, in which ranks are not far from where they were; none for seed 0."""
    state = seed
    for i in range(ranks.shape[1] - 1, 0, -1):
        if seed > 0:
            state = (state * 1_103_515_245 + 12_345) % (1 << 31)  # ANSI C's example generator
            j = max(0, i - (state >> 16) % NEAR)
            swapped = ranks[TURN, i]
            ranks[TURN, i] = ranks[TURN, j]
            ranks[TURN, j] = swapped


@kernel
def attempt(pieces, exchange, k, left, turn, grid, ranks, chunks):
    """Cut the k longest pieces, the others being placed; returns the chunks, -1 for no plan."""
    shuffle_near(turn, ranks)
    head = 0
    for rank in range(ranks.shape[1]):
        ranks[TILES, rank] = 0
    if k > 0:
        head = reserve(pieces, k, left, ranks)
        if head < 0:
            return -1
    count = 0
    for piece in range(pieces.shape[1]):
        if pieces[OWNER, piece] >= 0:
            chunks[count, 0] = pieces[OWNER, piece]
            chunks[count, 1] = piece
            chunks[count, 2] = 0
            chunks[count, 3] = pieces[TOKENS, piece]
            count += 1
    count = pour(pieces, exchange, k, head, grid, ranks, chunks, count)
    return cut_long(pieces, exchange, k, head, turn, grid, ranks, chunks, count)


@kernel
def slowest_of(ranks: np.ndarray) -> int:
    """The largest load."""
    slowest = 0
    for rank in range(ranks.shape[1]):
        slowest = max(slowest, ranks[LOAD, rank])
    return slowest


@kernel
def best_order(pieces, exchange, k, orders, enough, grid, ranks, chunks, best):
    """Cut the k longest pieces in the best of some orders of ranks, and trade tiles.

    Writes the chunks to `best`; returns how many, -1 for no plan, and the slowest rank's load.
    """
    left = begin(pieces, k, ranks)
    num = len(ranks)
    placed, best_ranks = np.empty_like(ranks), np.empty_like(ranks)
    copy_rows(ranks, placed, 0, num)
    found, least = -1, 0
    for turn in range(orders):
        copy_rows(placed, ranks, 0, num)
        count = attempt(pieces, exchange, k, left, turn, grid, ranks, chunks)
        if count < 0:
            break
        slowest = slowest_of(ranks)
        if found < 0 or slowest < least:
            found, least = count, slowest
            copy_rows(chunks, best, 0, count)
            copy_rows(ranks, best_ranks, 0, num)
        if least <= enough:
            break
    if found < 0:
        return -1, 0
    most = TRADES * ranks.shape[1]
    found = trade_tiles(pieces, exchange, most, best_ranks, grid, best, found)
    return found, slowest_of(best_ranks)


@kernel
def search_row(pieces, exchange, first_k, last_k, linear, effort, grid, ranks, tables):
    """Write the best chunks found to `tables[0]`; returns how many, -1 for no plan.

    Fewer cuts come first, and more only where they save enough time; an even split of the pieces
    uncut is the least that there can be. `linear` is the ranks' other time, in pairs.
    """
    even = 0.0
    for piece in range(pieces.shape[1]):
        even += pieces[COST, piece] / ranks.shape[1]
    enough = even + GOOD_ENOUGH * (linear + even)
    found, least = -1, 0.0
    for k in range(first_k, last_k + 1):
        bar = least * (1.0 - WORTH_CUTTING)
        if found >= 0 and bar <= linear + even:
            break
        count, slowest = best_order(
            pieces, exchange, k, effort.orders, enough, grid, ranks, tables[2], tables[1]
        )
        if count >= 0 and (found < 0 or linear + slowest < bar):
            found, least = count, linear + slowest
            copy_rows(tables[1], tables[0], 0, count)
    return found


@kernel
def cut_mixed(
    piece_tokens: Int64,
    order: Int64,
    row_offsets: Int64,
    cp_size: int,
    crossovers: Int64,
    exchange: Int64,
    grid: np.ndarray,
    effort: Effort,
    capacities: Int64,
    chunks: np.ndarray,
    chunk_offsets: Int64,
) -> None:
    """Plan every row.

    Args:
        piece_tokens: (pieces,).
        order: each row's pieces, longest first, (pieces,).
        row_offsets: (rows + 1,).
        cp_size: ranks.
        crossovers: L* of each row, (rows,).
        exchange: pairs that a received KV token is worth, (rows,).
        grid: `Throughput.table`.
        effort: what is tried.
        capacities: most chunks of each row (`mixed.most_chunks`), (rows,).
        chunks: written, unsorted, capacity at least their sum.
        chunk_offsets: written, (rows + 1,).
    """
    ranks = np.zeros((7, cp_size), np.int64)
    count = 0
    chunk_offsets[0] = 0
    for row in range(len(row_offsets) - 1):
        first, stop = row_offsets[row], row_offsets[row + 1]
        pieces = np.empty((4, stop - first), np.int64)
        total = 0
        for i in range(first, stop):
            tokens = piece_tokens[i]
            pieces[TOKENS, i - first] = tokens
            pieces[COST, i - first] = chunk_cost(0, tokens, grid)
            pieces[ORDER, i - first] = order[i]
            pieces[OWNER, i - first] = -1
            total += tokens
        for rank in range(cp_size):
            ranks[QUOTA, rank] = total // cp_size + (1 if rank < total % cp_size else 0)
        least = effort.at_least if effort.at_least > 0 else ranks[QUOTA, 0] + 1
        first_k = 0
        while first_k < stop - first and pieces[TOKENS, pieces[ORDER, first_k]] >= least:
            first_k += 1
        last_k = min(stop - first, first_k + effort.more_cuts)
        linear = ranks[QUOTA, 0] * (min(crossovers[row], 1 << 40) / 2)
        tables = np.empty((3, capacities[row], 4), np.int64)
        found = -1
        while found < 0:  # fewer cuts, down to none, which always works out
            found = search_row(
                pieces, exchange[row], first_k, last_k, linear, effort, grid, ranks, tables
            )
            first_k -= 1
            last_k = first_k
        copy_rows(tables[0], chunks, count, found)
        count += found
        chunk_offsets[row + 1] = count
