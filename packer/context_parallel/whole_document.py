"""`whole_document`: no piece is cut, and ranks hold what comes out. A diagnostic, not a plan."""

from __future__ import annotations

from packer.context_parallel.kernels import Grid
from packer.context_parallel.kernels_whole import place_rows
from packer.context_parallel.options import CPCost, CPOptions
from packer.context_parallel.plan import ChunkTable
from packer.plan import Int64


def whole_document(
    piece_tokens: Int64, row_offsets: Int64, cp_size: int, cost: CPCost, options: CPOptions
) -> ChunkTable:
    """Each piece, longest first, on the rank with the least predicted time so far.

    What a longest piece costs when nothing is cut: neither tokens nor work are even.
    """
    table = ChunkTable.empty(len(piece_tokens), row_offsets)
    place_rows(
        piece_tokens,
        row_offsets,
        cp_size,
        cost.crossovers,
        Grid(*cost.grid),
        table.chunks,
        table.offsets,
    )
    return table
