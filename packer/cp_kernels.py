"""Kernels of context-parallel plans: many micro-batches at once.

Rows are micro-batches, `piece_tokens[row_offsets[j] : row_offsets[j + 1]]` the pieces of row j. A
chunk is a row of an int64 table (capacity, 4): cp_rank, piece, start, stop; `chunk_offsets` (rows
+ 1,) says which chunks are whose. Chunks are made in their final order, rank by rank, so nothing
is sorted.
"""

from __future__ import annotations

import numpy as np

from packer.jit import kernel
from packer.plan import Int64

TILE = 128
"""Query rows, and keys, of a tile of the attention kernel."""


@kernel
def append_chunk(
    chunks: np.ndarray, first: int, count: int, rank: int, piece: int, start: int, stop: int
) -> int:
    """Add a chunk and return the new count; empty ones vanish, touching ones become one.

    Args:
        chunks: table, of which `count` rows are in use.
        first: the row's first chunk, before which nothing is joined.
        count: chunks so far.
        rank: of the new chunk.
        piece: of the new chunk.
        start: its first token in the piece.
        stop: the token after its last.
    """
    if start == stop:
        return count
    if count > first:
        last = count - 1
        if chunks[last, 0] == rank and chunks[last, 1] == piece and chunks[last, 3] == start:
            chunks[last, 3] = stop
            return count
    chunks[count, 0] = rank
    chunks[count, 1] = piece
    chunks[count, 2] = start
    chunks[count, 3] = stop
    return count + 1


@kernel
def piece_holding(begin: Int64, first: int, stop: int, token: int) -> int:
    """The last piece in [first, stop) that begins at or before `token`, by bisection."""
    while stop - first > 1:
        middle = (first + stop) // 2
        if begin[middle] <= token:
            first = middle
        else:
            stop = middle
    return first


@kernel
def cut_per_sequence(
    piece_begin: Int64, row_offsets: Int64, cp_size: int, chunks: np.ndarray, chunk_offsets: Int64
) -> None:
    """Head-tail over the packed sequence.

    Args:
        piece_begin: tokens before each piece over all rows, and the total, (pieces + 1,).
        row_offsets: (rows + 1,).
        cp_size: ranks.
        chunks: written, capacity at least pieces + rows x (2 x cp_size - 1).
        chunk_offsets: written, (rows + 1,).
    """
    count = 0
    chunk_offsets[0] = 0
    for row in range(len(row_offsets) - 1):
        first_piece, stop_piece = row_offsets[row], row_offsets[row + 1]
        head = int(piece_begin[first_piece])  # where the next head part begins
        tail = int(piece_begin[stop_piece])  # where the next tail part ends
        share, more = (tail - head) // cp_size, (tail - head) % cp_size
        first_chunk = count
        for rank in range(cp_size):
            tokens = share + 1 if rank < more else share
            half = tokens - tokens // 2
            rest = tokens - half
            for at, end in ((head, head + half), (tail - rest, tail)):
                piece = piece_holding(piece_begin, first_piece, stop_piece, at)
                while at < end:
                    before = piece_begin[piece]
                    stop = min(end, piece_begin[piece + 1])
                    index = piece - first_piece
                    count = append_chunk(
                        chunks, first_chunk, count, rank, index, at - before, stop - before
                    )
                    at = stop
                    piece += 1
            head += half
            tail -= rest
        chunk_offsets[row + 1] = count


@kernel
def extra_before(slot: int, cursor: int, extra: int, num_slots: int) -> int:
    """Extra tokens in slots before `slot`, of `extra` < num_slots dealt on from `cursor`."""
    straight = min(slot, cursor + extra) - cursor
    wrapped = min(slot, cursor + extra - num_slots)
    return max(0, straight) + max(0, wrapped)


@kernel
def cut_per_document(
    piece_tokens: Int64, row_offsets: Int64, cp_size: int, chunks: np.ndarray, chunk_offsets: Int64
) -> None:
    """Head-tail over every piece.

    Args:
        piece_tokens: (pieces,).
        row_offsets: (rows + 1,).
        cp_size: ranks.
        chunks: written, capacity at least the sum of min(tokens, 2 x cp_size) over pieces.
        chunk_offsets: written, (rows + 1,).
    """
    num_slots = 2 * cp_size
    count = 0
    chunk_offsets[0] = 0
    for row in range(len(row_offsets) - 1):
        first_chunk = count
        for rank in range(cp_size):
            cursor = 0
            for piece in range(row_offsets[row], row_offsets[row + 1]):
                share, extra = piece_tokens[piece] // num_slots, piece_tokens[piece] % num_slots
                for slot in (rank, num_slots - 1 - rank):
                    start = slot * share + extra_before(slot, cursor, extra, num_slots)
                    stop = (slot + 1) * share + extra_before(slot + 1, cursor, extra, num_slots)
                    count = append_chunk(
                        chunks, first_chunk, count, rank, piece - row_offsets[row], start, stop
                    )
                cursor = (cursor + extra) % num_slots
        chunk_offsets[row + 1] = count


@kernel
def tile_area(start: int, stop: int) -> int:
    """Tile-padded attention area of queries [start, stop) of a piece, in query-key pairs.

    Query tiles of 128 rows begin at `start`; each takes the keys up to its last row, rounded up
    to 128. All tiles but the last are full, so their keys are an arithmetic series.
    """
    full, rest = (stop - start) // TILE, (stop - start) % TILE
    tiles = full * ((start + TILE - 1) // TILE) + full * (full + 1) // 2
    if rest > 0:
        tiles += (stop + TILE - 1) // TILE
    return tiles * TILE * TILE


@kernel
def load_ranks(
    row_offsets: Int64,
    cp_rank: np.ndarray,
    start: Int64,
    stop: Int64,
    tokens: np.ndarray,
    area: np.ndarray,
) -> None:
    """Add tokens and tile-padded area of each rank to zeroed int64 tables (rows, cp_size)."""
    for row in range(len(row_offsets) - 1):
        for i in range(row_offsets[row], row_offsets[row + 1]):
            tokens[row, cp_rank[i]] += stop[i] - start[i]
            area[row, cp_rank[i]] += tile_area(start[i], stop[i])


@kernel
def measure(
    piece_tokens: Int64,
    piece_offsets: Int64,
    chunk_offsets: Int64,
    cp_rank: np.ndarray,
    piece: np.ndarray,
    start: Int64,
    stop: Int64,
    sums: Int64,
) -> None:
    """Add up what the measures need beside the ranks' loads, over all rows.

    `sums`, int64 (5,): exact causal area of the pieces, their tile-padded area uncut, their
    tokens, tokens of pieces that are cut, KV tokens that ranks need and do not hold.
    """
    for row in range(len(piece_offsets) - 1):
        first_piece = piece_offsets[row]
        for i in range(first_piece, piece_offsets[row + 1]):
            sums[0] += piece_tokens[i] * (piece_tokens[i] + 1) // 2
            sums[1] += tile_area(0, piece_tokens[i])
            sums[2] += piece_tokens[i]
        last = chunk_offsets[row + 1] - 1
        for i in range(chunk_offsets[row], last + 1):
            sums[4] -= stop[i] - start[i]
            if stop[i] - start[i] < piece_tokens[first_piece + piece[i]]:
                sums[3] += stop[i] - start[i]
            if i == last or cp_rank[i + 1] != cp_rank[i] or piece[i + 1] != piece[i]:
                sums[4] += stop[i]  # the rank's last chunk of the piece reaches furthest
