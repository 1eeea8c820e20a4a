"""Rows of pieces and chunks, sorted and joined, all at once."""

from __future__ import annotations

import numpy as np

from packer.context_parallel.plan import ChunkTable
from packer.plan import Int64


def longest_first(piece_tokens: Int64, row_offsets: Int64) -> Int64:
    """Indexes of each row's pieces in the row, longest first, the earlier of equals first."""
    row = np.repeat(np.arange(len(row_offsets) - 1), np.diff(row_offsets))
    order = np.lexsort((-piece_tokens, row))
    return order - row_offsets[row]


def in_order(table: ChunkTable) -> ChunkTable:
    """Chunks of each row by (cp_rank, piece, start), those joined that touch."""
    count = int(table.offsets[-1])
    row = np.repeat(np.arange(len(table.offsets) - 1), np.diff(table.offsets))
    rank, piece, start, _ = table.chunks[:count].T
    order = np.lexsort((start, piece, rank, row))
    chunks, row = table.chunks[:count][order], row[order]
    keys = np.column_stack([row, chunks[:, 0], chunks[:, 1]])
    joins = np.zeros(count, np.bool_)
    joins[1:] = (keys[1:] == keys[:-1]).all(axis=1) & (chunks[1:, 2] == chunks[:-1, 3])
    first = np.flatnonzero(~joins)
    last = np.append(first, count)[1:] - 1
    joined = chunks[first]
    joined[:, 3] = chunks[last, 3]
    counts = np.bincount(row[first], minlength=len(table.offsets) - 1)
    return ChunkTable(joined, np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)]))
