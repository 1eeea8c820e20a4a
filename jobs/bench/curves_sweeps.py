"""Which points make which curve: the values along every axis, in full and for a quick look."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from jobs.bench.curves_points import POLICIES, Point, plain
from jobs.bench.curves_windows import Windowed

Options = dict[str, Any]
"""Fields of a `Point` that are not its defaults."""

CLUSTERS: tuple[Options, ...] = (
    {"pp_size": 1},
    {"pp_size": 1, "coupling": "lockstep"},
    {"pp_size": 4},
    {"pp_size": 4, "coupling": "lockstep"},
    {"pp_size": 4, "virtual_stages": 2},
)
"""The kinds of clusters of the table that says who needs what."""
WORTH_IT = ("reorder", "wlb", "lookahead")
"""The policies of that table."""
DEEPEST: Options = {"objective": "max"}
"""What `lookahead` searches for where excess is what is compared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """How much is simulated."""

    seeds: tuple[int, ...]
    sizes: tuple[tuple[int, int, int], ...]
    """N, dp and about how many steps; the curves over N have a point for each."""
    panels: tuple[int, ...]
    """N of the panels of every curve that is not one over N."""
    choice: tuple[int, ...]
    """N of the table that says who needs what."""
    max_tokens_over_context: tuple[float, ...]
    mean_displacement: tuple[float, ...]
    token_band: tuple[float, ...]
    window_steps: tuple[int, ...]
    windowed: tuple[tuple[int, int], ...]
    """N and steps of the comparison of windows."""
    moves_per_piece: tuple[int, ...]
    global_batches: tuple[int, ...]


FULL = Extent(
    seeds=(0, 1),
    sizes=((4, 1, 384), (16, 4, 128), (64, 8, 64), (256, 32, 32)),
    panels=(16, 64),
    choice=(16, 64, 256),
    max_tokens_over_context=(1.0, 1.05, 1.1, 1.25, 1.5, 2.0),
    mean_displacement=(0.05, 0.1, 0.25, 0.5, 1.0),
    token_band=(0.0, 0.1, 0.05, 0.02, 0.01),
    window_steps=(16, 32, 64, 128),
    windowed=((4, 384), (16, 256), (64, 128)),
    moves_per_piece=(50, 200, 800, 1600),
    global_batches=(1, 2, 4, 8),
)
QUICK = Extent(
    seeds=(0,),
    sizes=((4, 1, 12), (8, 2, 8)),
    panels=(4, 8),
    choice=(8,),
    max_tokens_over_context=(1.1, 1.25),
    mean_displacement=(0.25, 0.5),
    token_band=(0.0, 0.05),
    window_steps=(12, 18),
    windowed=((4, 36),),
    moves_per_piece=(10, 20),
    global_batches=(1, 2),
)


def sweeps(extent: Extent) -> dict[str, list[Point]]:
    """The points of each sweep, by its name, every policy where not said otherwise.

    `effort` is of `lookahead` with the objective "max", so that what is measured, excess, is what
    is searched for.
    """

    def over(nums: tuple[int, ...], policies: Iterable[str], *options: Options) -> list[Point]:
        sizes = [size for size in extent.sizes if size[0] in nums]
        return _points(sizes, policies, options)

    displaced = each("mean_displacement", extent.mean_displacement)
    displaced += each("global_batches", extent.global_batches)
    efforts = each("moves_per_piece", (0, *extent.moves_per_piece))
    tokens = each("max_tokens_over_context", extent.max_tokens_over_context)
    found = {
        "max_tokens": over(extent.panels, POLICIES, *tokens),
        "displacement": over(extent.panels, POLICIES, *displaced),
        "size": over(tuple(num for num, _, _ in extent.sizes), POLICIES, {}),
        "band": over(extent.panels, POLICIES, *each("token_band", extent.token_band)),
        "choice": over(extent.choice, WORTH_IT, *CLUSTERS),
        "effort": over(extent.panels, ["lookahead"], *[DEEPEST | effort for effort in efforts]),
    }
    return {name: list(dict.fromkeys(points)) for name, points in found.items()}


def windows(extent: Extent) -> list[Windowed]:
    """The comparison of windows."""
    return [
        Windowed(num_micro_batches=num, steps=steps, window_steps=window)
        for num, steps in extent.windowed
        for window in extent.window_steps
    ]


def each(name: str, values: Iterable[Any]) -> list[Options]:
    """An option with each of its values."""
    return [{name: value} for value in values]


def _points(
    sizes: Iterable[tuple[int, int, int]], policies: Iterable[str], options: Iterable[Options]
) -> list[Point]:
    return [
        plain(Point(policy=name, num_micro_batches=num, dp_size=dp_size, steps=steps, **option))
        for num, dp_size, steps in sizes
        for name in policies
        for option in options
    ]
