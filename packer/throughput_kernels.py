"""Kernels of `packer.throughput`: called for every chunk that a search tries.

A call takes 10 to 30 nanoseconds, less than one where all shapes run alike (`FLAT`). The grid comes
as `Throughput.arrays()` gives it. All is + - * / on float64 in the order written, so it is the same
on every machine.
"""

from __future__ import annotations

import numpy as np

from packer.jit import inlined
from packer.plan import Int64


@inlined
def last_at_most(points: Int64, value: int) -> int:
    """The last of ascending points that is at most `value`, 0 where none is, by bisection."""
    first, stop = 0, len(points)
    while stop - first > 1:
        middle = (first + stop) // 2
        if points[middle] <= value:
            first = middle
        else:
            stop = middle
    return first


@inlined
def part_way(points: Int64, i: int, value: int) -> float:
    """How far `value` is from point i to the next, in [0, 1); 0 outside the points."""
    if i + 1 == len(points) or value <= points[i]:
        return 0.0
    return (value - points[i]) / (points[i + 1] - points[i])


@inlined
def relative_throughput(
    queries: int, keys: int, query_tokens: Int64, key_tokens: Int64, relative: np.ndarray
) -> float:
    """Throughput of a chunk over the largest: first along keys, then along queries.

    Args:
        queries: of the chunk, at least 1.
        keys: of the chunk, its last query's own included.
        query_tokens: of the grid's rows, int64, ascending.
        key_tokens: of its columns, int64, ascending.
        relative: float64 (rows, columns), in (0, 1].

    Returns:
        A number above 0. At a grid point its entry exactly; otherwise it may be beyond the four
        entries around by the last bit, and so above 1.
    """
    if relative.size == 1:
        return 1.0
    i, j = last_at_most(query_tokens, queries), last_at_most(key_tokens, keys)
    along_keys = part_way(key_tokens, j, keys)
    along_queries = part_way(query_tokens, i, queries)
    next_i, next_j = min(i + 1, len(query_tokens) - 1), min(j + 1, len(key_tokens) - 1)
    low = relative[i, j] + (relative[i, next_j] - relative[i, j]) * along_keys
    high = relative[next_i, j] + (relative[next_i, next_j] - relative[next_i, j]) * along_keys
    return low + (high - low) * along_queries


@inlined
def weighted_area(
    area: int,
    queries: int,
    keys: int,
    query_tokens: Int64,
    key_tokens: Int64,
    relative: np.ndarray,
) -> int:
    """Area as the time it takes: floor(area / relative throughput + 1/2), never below `area`.

    Args:
        area: tile-padded, of the chunk, at most 2^52.
        queries: as in `relative_throughput`, like all the rest.
        keys: "
        query_tokens: "
        key_tokens: "
        relative: "

    Returns:
        int64, exactly `area` where the throughput is the largest.
    """
    share = relative_throughput(queries, keys, query_tokens, key_tokens, relative)
    if share >= 1.0:
        return area
    return int(np.floor(area / share + 0.5))
