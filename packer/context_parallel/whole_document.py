"""`whole_document`: no piece is cut, and ranks hold what comes out. A diagnostic, not a plan."""

from __future__ import annotations

import numpy as np

from packer.context_parallel.kernels_whole import place_rows
from packer.context_parallel.options import CPCost, CPOptions
from packer.context_parallel.plan import ChunkTable
from packer.context_parallel.rows import in_order, longest_first
from packer.plan import Int64


def whole_document(
    piece_tokens: Int64, row_offsets: Int64, cp_size: int, cost: CPCost, options: CPOptions
) -> ChunkTable:
    """Each piece, longest first, on the rank with the least predicted time so far.

    What a longest piece costs when nothing is cut: neither tokens nor work are even.
    """
    chunks = np.empty((len(piece_tokens), 4), np.int64)
    order = longest_first(piece_tokens, row_offsets)
    place_rows(piece_tokens, order, row_offsets, cp_size, cost.crossovers, cost.grid, chunks)
    return in_order(ChunkTable(chunks, row_offsets))
