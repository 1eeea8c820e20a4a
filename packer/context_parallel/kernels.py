"""Kernels of context-parallel plans: many micro-batches at once.

Rows are micro-batches, `piece_tokens[row_offsets[j] : row_offsets[j + 1]]` the pieces of row j. A
chunk is a row of an int64 table (capacity, 4): cp_rank, piece, start, stop; `chunk_offsets` (rows
+ 1,) says which chunks are whose.
"""

from __future__ import annotations

import numpy as np

from packer.jit import kernel
from packer.plan import Int64
from packer.throughput import TILE
from packer.throughput_kernels import weighted_area


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
def chunk_cost(start: int, stop: int, grid: np.ndarray) -> int:
    """Tile-padded area of queries [start, stop), weighted by the time that it takes.

    Args:
        start: first query of the chunk in its piece.
        stop: the query after its last.
        grid: `Throughput.table`.
    """
    return weighted_area(tile_area(start, stop), stop - start, stop, grid)


@kernel
def load_ranks(
    row_offsets: Int64,
    cp_rank: np.ndarray,
    piece: np.ndarray,
    start: Int64,
    stop: Int64,
    grid: np.ndarray,
    loads: np.ndarray,
) -> None:
    """Add up each rank's chunks.

    Args:
        row_offsets: chunks of each row, (rows + 1,).
        cp_rank: (chunks,), like the next three a plan's.
        piece: -1 where a chunk is padding, which is tokens and nothing else.
        start: "
        stop: "
        grid: `Throughput.table`.
        loads: zeroed int64 (4, rows, cp_size), added to: tokens, tile-padded area, the same
            weighted, KV tokens that the rank needs and does not hold.
    """
    for row in range(len(row_offsets) - 1):
        last = row_offsets[row + 1] - 1
        for i in range(row_offsets[row], last + 1):
            rank = cp_rank[i]
            loads[0, row, rank] += stop[i] - start[i]
            if piece[i] < 0:
                continue
            loads[1, row, rank] += tile_area(start[i], stop[i])
            loads[2, row, rank] += chunk_cost(start[i], stop[i], grid)
            loads[3, row, rank] -= stop[i] - start[i]
            if i == last or cp_rank[i + 1] != rank or piece[i + 1] != piece[i]:
                loads[3, row, rank] += stop[i]  # the rank's last chunk of it reaches furthest


@kernel
def measure(
    piece_tokens: Int64,
    piece_offsets: Int64,
    chunk_offsets: Int64,
    piece: np.ndarray,
    start: Int64,
    stop: Int64,
    sums: Int64,
    whole_area: Int64,
) -> None:
    """Add up what the measures need beside the ranks' loads, over all rows.

    `sums`, int64 (3,): exact causal area of the pieces, their tokens, tokens of pieces that are
    cut. `whole_area`, int64 (rows,): tile-padded area of the row's pieces uncut.
    """
    for row in range(len(piece_offsets) - 1):
        first_piece = piece_offsets[row]
        for i in range(first_piece, piece_offsets[row + 1]):
            sums[0] += piece_tokens[i] * (piece_tokens[i] + 1) // 2
            sums[1] += piece_tokens[i]
            whole_area[row] += tile_area(0, piece_tokens[i])
        for i in range(chunk_offsets[row], chunk_offsets[row + 1]):
            if piece[i] >= 0 and stop[i] - start[i] < piece_tokens[first_piece + piece[i]]:
                sums[2] += stop[i] - start[i]
