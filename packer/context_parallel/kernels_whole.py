"""Kernels that place whole pieces on ranks."""

from __future__ import annotations

import numpy as np

from packer.context_parallel.kernels import Grid, chunk_cost
from packer.jit import kernel
from packer.plan import Int64


@kernel
def longest_first(tokens: Int64) -> Int64:
    """Indexes of pieces, longest first, the earlier of equals first."""
    return np.argsort(-tokens, kind="mergesort")


@kernel
def place_rows(
    piece_tokens: Int64,
    row_offsets: Int64,
    cp_size: int,
    crossovers: Int64,
    grid: Grid,
    chunks: np.ndarray,
    chunk_offsets: Int64,
) -> None:
    """Place all pieces, longest first, on the rank whose time is least, whatever room it has.

    Args:
        piece_tokens: (pieces,).
        row_offsets: (rows + 1,).
        cp_size: ranks.
        crossovers: L* of each row, (rows,).
        grid: throughput.
        chunks: written, capacity at least pieces.
        chunk_offsets: written, (rows + 1,).
    """
    count = 0
    chunk_offsets[0] = 0
    for row in range(len(row_offsets) - 1):
        tokens = piece_tokens[row_offsets[row] : row_offsets[row + 1]]
        owner = np.zeros(len(tokens), np.int64)
        time = np.zeros(cp_size, np.float64)
        for piece in longest_first(tokens):
            rank = int(np.argmin(time))
            owner[piece] = rank
            work = 2.0 * chunk_cost(0, tokens[piece], grid) / crossovers[row]
            time[rank] += tokens[piece] + work
        for rank in range(cp_size):
            for piece in range(len(tokens)):
                if owner[piece] == rank:
                    chunks[count, 0] = rank
                    chunks[count, 1] = piece
                    chunks[count, 2] = 0
                    chunks[count, 3] = tokens[piece]
                    count += 1
        chunk_offsets[row + 1] = count
