"""`mixed`: short pieces whole on one rank, long ones cut so that all ranks finish together."""

from __future__ import annotations

import numpy as np

from packer.context_parallel.kernels import TILE
from packer.context_parallel.kernels_mixed import TRADES, Effort, cut_mixed
from packer.context_parallel.options import CPCost, CPOptions
from packer.context_parallel.plan import ChunkTable
from packer.context_parallel.rows import in_order, longest_first
from packer.plan import Int64

MORE_CUTS, ORDERS = 6, 3


def mixed(
    piece_tokens: Int64, row_offsets: Int64, cp_size: int, cost: CPCost, options: CPOptions
) -> ChunkTable:
    """Cut the longest pieces, at tiles of 128, and keep the others whole.

    A piece whole on one rank needs no keys of others and wastes no tiles, so as few are cut as make
    ranks finish together: pieces longer than a rank's share, and so many of the next as shorten the
    predicted time by more than `kernels_mixed.WORTH_CUTTING`. Whole pieces go, longest first, where
    room and work will be most in keeping. Then the ranks peel the cut pieces from outside in: each
    takes a head and a tail of as many tiles as it has room for, split between them so that its time
    comes out right, for a tail costs more than a head. What room is left over below a tile is
    filled with pieces that fit nowhere, and with the first tokens of the shortest cut piece, where
    a broken tile costs next to nothing. Several orders of ranks are tried.

    WLB-LLM leaves mixing as future work (arXiv 2503.17924, section 5.3).
    """
    effort = Effort(at_least=0, more_cuts=MORE_CUTS, orders=ORDERS)
    return _cut(piece_tokens, row_offsets, cp_size, cost, effort)


def per_document_aligned(
    piece_tokens: Int64, row_offsets: Int64, cp_size: int, cost: CPCost, options: CPOptions
) -> ChunkTable:
    """Like `per_document`, but cut at tiles of 128; pieces too short for that stay whole.

    Too short is below 2 x cp_size tiles.
    """
    effort = Effort(at_least=2 * cp_size * TILE, more_cuts=0, orders=ORDERS)
    return _cut(piece_tokens, row_offsets, cp_size, cost, effort)


def _cut(
    piece_tokens: Int64, row_offsets: Int64, cp_size: int, cost: CPCost, effort: Effort
) -> ChunkTable:
    capacities = most_chunks(piece_tokens, row_offsets, cp_size, effort)
    table = ChunkTable.empty(int(capacities.sum()), row_offsets)
    cut_mixed(
        piece_tokens,
        longest_first(piece_tokens, row_offsets),
        row_offsets,
        cp_size,
        cost.crossovers,
        cost.exchange_pairs,
        cost.grid,
        effort,
        capacities,
        table.chunks,
        table.offsets,
    )
    return in_order(table)


def most_chunks(piece_tokens: Int64, row_offsets: Int64, cp_size: int, effort: Effort) -> Int64:
    """A bound on the chunks of each micro-batch, (rows,).

    A piece is one, the stream has one more a rank, a cut piece a head and a tail a rank, a trade
    four.
    """
    if len(row_offsets) == 1:
        return np.zeros(0, np.int64)
    pieces = np.diff(row_offsets)
    share = np.add.reduceat(piece_tokens, row_offsets[:-1]) // cp_size
    long = piece_tokens > np.repeat(share, pieces)
    if effort.at_least:
        long = piece_tokens >= effort.at_least
    cuts = np.add.reduceat(long.astype(np.int64), row_offsets[:-1]) + effort.more_cuts
    cut = 2 * pieces + cp_size + 2 * cp_size * np.minimum(cuts, pieces) + 1
    return cut + 4 * TRADES * cp_size
