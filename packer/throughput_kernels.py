"""Kernels of `packer.throughput`: called for every chunk that a search tries.

The grid comes as `Throughput.table` gives it, one array, since each that is handed on costs a call
some nanoseconds. All is + - * / on float64 in the order written, so it is the same on every
machine.
"""

from __future__ import annotations

import numpy as np

from packer.jit import kernel


@kernel
def last_at_most(points: np.ndarray, value: int) -> int:
    """The last of ascending points, from place 1 on, that is at most `value`, 1 where none is."""
    first, stop = 1, len(points)
    while stop - first > 1:
        middle = (first + stop) // 2
        if points[middle] <= value:
            first = middle
        else:
            stop = middle
    return first


@kernel
def relative_throughput(queries: int, keys: int, table: np.ndarray) -> float:
    """Throughput of a chunk over the largest: first along keys, then along queries.

    Args:
        queries: of the chunk, at least 1.
        keys: of the chunk, its last query's own included.
        table: float64 (1 + rows, 1 + columns): numbers of keys in row 0, of queries in column 0,
            both ascending, and throughputs in (0, 1].

    Returns:
        A number above 0. At a grid point its entry exactly; otherwise it may be beyond the four
        entries around by the last bit, and so above 1.
    """
    if table.size == 4:
        return 1.0
    i, j = last_at_most(table[:, 0], queries), last_at_most(table[0], keys)
    next_i, next_j = min(i + 1, table.shape[0] - 1), min(j + 1, table.shape[1] - 1)
    along_keys = along_queries = 0.0  # how far to the next point; nothing outside the grid
    if next_j > j and keys > table[0, j]:
        along_keys = (keys - table[0, j]) / (table[0, next_j] - table[0, j])
    if next_i > i and queries > table[i, 0]:
        along_queries = (queries - table[i, 0]) / (table[next_i, 0] - table[i, 0])
    low = table[i, j] + (table[i, next_j] - table[i, j]) * along_keys
    high = table[next_i, j] + (table[next_i, next_j] - table[next_i, j]) * along_keys
    return low + (high - low) * along_queries


@kernel
def weighted_area(area: int, queries: int, keys: int, table: np.ndarray) -> int:
    """Area as the time it takes: floor(area / relative throughput + 1/2), never below `area`.

    Args:
        area: tile-padded, of the chunk, at most 2^52.
        queries: as in `relative_throughput`, like the next two.
        keys: "
        table: "

    Returns:
        int64, exactly `area` where the throughput is the largest.
    """
    share = relative_throughput(queries, keys, table)
    if share >= 1.0:
        return area
    return int(np.floor(area / share + 0.5))
