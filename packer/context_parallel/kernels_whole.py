"""Kernels that place whole pieces on ranks."""

from __future__ import annotations

import numpy as np

from packer.context_parallel.kernels import chunk_cost
from packer.jit import kernel
from packer.plan import Int64


@kernel
def place_rows(
    piece_tokens: Int64,
    order: Int64,
    row_offsets: Int64,
    cp_size: int,
    crossovers: Int64,
    grid: np.ndarray,
    chunks: np.ndarray,
) -> None:
    """Place all pieces, longest first, on the rank whose time is least, whatever room it has.

    Args:
        piece_tokens: (pieces,).
        order: each row's pieces, longest first, (pieces,).
        row_offsets: (rows + 1,).
        cp_size: ranks.
        crossovers: L* of each row, (rows,).
        grid: `Throughput.table`.
        chunks: written, one a piece, unsorted, (pieces, 4).
    """
    for row in range(len(row_offsets) - 1):
        time = np.zeros(cp_size, np.float64)
        for at in range(row_offsets[row], row_offsets[row + 1]):
            tokens = int(piece_tokens[row_offsets[row] + order[at]])
            rank = int(np.argmin(time))
            time[rank] += tokens + 2.0 * chunk_cost(0, tokens, grid) / crossovers[row]
            chunks[at, 0] = rank
            chunks[at, 1] = order[at]
            chunks[at, 2] = 0
            chunks[at, 3] = tokens
