"""Slow twin of the throughput kernels: exact fractions, cells looked for one by one."""

from __future__ import annotations

from fractions import Fraction

from packer.throughput import Throughput


def relative_throughput(grid: Throughput, queries: int, keys: int) -> Fraction:
    """The bilinear surface over the grid, its border continued outwards."""
    peak = max(Fraction(number) for row in grid.achieved for number in row)
    queries = min(max(queries, grid.query_tokens[0]), grid.query_tokens[-1])
    keys = min(max(keys, grid.key_tokens[0]), grid.key_tokens[-1])
    return sum(
        weight_q * weight_k * Fraction(grid.achieved[i][j]) / peak
        for i, weight_q in weights(grid.query_tokens, queries)
        for j, weight_k in weights(grid.key_tokens, keys)
    ) + Fraction(0)


def weights(points: tuple[int, ...], value: int) -> list[tuple[int, Fraction]]:
    """What each point around a value within the points counts for."""
    for i, point in enumerate(points):
        if value == point:
            return [(i, Fraction(1))]
        if value < point:
            along = Fraction(value - points[i - 1], point - points[i - 1])
            return [(i - 1, 1 - along), (i, along)]
    raise AssertionError("beyond the last point")


def weighted_area(grid: Throughput, area: int, queries: int, keys: int) -> Fraction:
    """Not yet rounded."""
    return area / relative_throughput(grid, queries, keys)
