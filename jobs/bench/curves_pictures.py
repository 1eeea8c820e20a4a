"""The curves as SVG files: the same bytes for the same figures and the same matplotlib."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from io import StringIO
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, MultipleLocator, NullLocator

from jobs.bench.curves_series import PICTURES, Panel, Picture, Rows, digest, panels_of

COLOURS = {
    "concat": ("#999999", "s"),
    "reorder": ("#E69F00", "^"),
    "fixed_greedy": ("#CC79A7", "D"),
    "wlb": ("#0072B2", "o"),
    "lookahead": ("#009E73", "v"),
}
"""Colour and marker of each policy: the palette of Okabe and Ito, which colour-blind people can
tell apart."""
SETTINGS: Any = {
    "svg.hashsalt": "steelyard",
    "svg.fonttype": "none",
    "font.family": "DejaVu Sans",
    "font.size": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e6e6e6",
    "figure.facecolor": "white",
}
LABELS = {
    "excess": "excess",
    "schedule_time": "schedule time (1: equal work)",
    "tokens_per_step_cv": "tokens of a step, cv",
}
TICKS = {
    "excess": (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0),
    "schedule_time": (0.95, 0.98, 0.99, 1.0, 1.01, 1.02, 1.05, 1.1, 1.2, 1.4, 1.8),
}
"""Where the axis is not linear."""
LEAST_EXCESS = 0.001
"""The axis of excess is logarithmic; what is less is drawn here."""
NEAR_ONE = 0.02
"""Within this of 1 the axis of times is linear, outside logarithmic in the distance."""
WIDTH, HEIGHT = 3.0, 2.3
"""Of a panel, in inches."""


def draw(rows: Rows, folder: Path) -> list[Path]:
    """Write every picture of these rows; the folder is made.

    Args:
        rows: as `jobs.bench.curves` keeps them.
        folder: where to.
    """
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for picture in PICTURES:
        path = folder / picture.file
        path.write_text(svg(picture, panels_of(picture, rows)), encoding="utf-8")
        paths.append(path)
    return paths


def svg(picture: Picture, lines: Sequence[Sequence[Panel]]) -> str:
    """One picture, as the text of an SVG file that names the rows it shows."""
    return svg_of(lambda: figure_of(picture, lines), digest(lines))


def svg_of(make: Callable[[], Figure], description: str) -> str:
    """A figure as the text of an SVG file, in the style of all pictures.

    Args:
        make: makes the figure; what it draws sees the style.
        description: kept in the file.
    """
    with mpl.rc_context(SETTINGS):
        text = StringIO()
        about = {"Date": None, "Creator": None, "Description": description}
        make().savefig(text, format="svg", metadata=about)
    short = re.sub(r"(\d\.\d\d)\d+", r"\1", text.getvalue())  # a hundredth of a point is enough
    return "\n".join(line.rstrip() for line in short.splitlines()) + "\n"


def figure_of(picture: Picture, lines: Sequence[Sequence[Panel]]) -> Figure:
    """The panels, a legend above them."""
    columns = len(lines[0])
    figure = Figure(figsize=(WIDTH * columns, HEIGHT * len(lines) + 0.3), layout="constrained")
    axes = figure.subplots(len(lines), columns, squeeze=False, sharex=True, sharey="col")
    for number, line in enumerate(lines):
        for place, panel in zip(axes[number], line, strict=True):
            _draw_panel(place, panel, picture)
            if number == len(lines) - 1:
                place.set_xlabel(picture.label)
    for place, panel in zip(axes[0], lines[0], strict=True):
        _scale(place, panel.measure, [y for line in lines for y in _values(line, panel.measure)])
    policies = list(lines[0][0].curves)
    figure.legend(
        handles=[_key(policy) for policy in policies],
        loc="outside upper center",
        ncols=len(policies),
        frameon=False,
    )
    return figure


def _draw_panel(place: Axes, panel: Panel, picture: Picture) -> None:
    if not picture.over_sizes:
        place.set_title(panel.title, fontsize=8, loc="left")
    place.set_ylabel(LABELS[panel.measure])
    order = _bands(panel) if picture.x == "token_band" else []
    least = LEAST_EXCESS if panel.measure == "excess" else -np.inf
    for policy, curve in panel.curves.items():
        colour, marker = COLOURS[policy]
        points = [(order.index(x) if order else x, max(y, least)) for x, y in curve]
        heights = [y for _, y in points]
        if len(curve) == 1 and picture.x != "displacement_mean":
            place.axhline(heights[0], color=colour, linewidth=1.2, linestyle="--")
            continue
        place.plot(
            [x for x, _ in points],
            heights,
            color=colour,
            marker=marker,
            markersize=4,
            linewidth=1.4,
            zorder=4 if len(curve) == 1 else 3,
        )
    if order:
        place.set_xticks(range(len(order)), [f"{100 * x:.0f}%" if x else "free" for x in order])
    elif picture.over_sizes:
        _count_sizes(place, panel)
    elif picture.x == "max_tokens_over_context":
        place.xaxis.set_major_locator(MultipleLocator(0.25))


def _bands(panel: Panel) -> list[float]:
    """Bands from none to the narrowest, evenly spaced in the picture."""
    bands = {x for curve in panel.curves.values() for x, _ in curve}
    return sorted(bands, key=lambda x: -(x or 1.0))


def _count_sizes(place: Axes, panel: Panel) -> None:
    sizes = sorted({x for curve in panel.curves.values() for x, _ in curve})
    place.set_xscale("log", base=2)
    place.xaxis.set_major_locator(FixedLocator(sizes))
    place.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:.0f}"))


def _values(line: Sequence[Panel], measure: str) -> list[float]:
    return [
        y
        for panel in line
        if panel.measure == measure
        for curve in panel.curves.values()
        for _, y in curve
    ]


def _scale(place: Axes, measure: str, values: Sequence[float]) -> None:
    """The axis of a measure, for all panels that share it."""
    low, high = min(values), max(values)
    clipped = measure == "excess" and low < LEAST_EXCESS
    if measure == "excess":
        place.set_yscale("log")
        place.set_ylim(0.8 * max(LEAST_EXCESS, low), 1.25 * high)
    elif measure == "schedule_time":
        place.set_yscale("function", functions=(_from_one, _to_one))
        place.set_ylim(min(0.99, low - 0.005), 1.03 * high)
    else:
        place.set_ylim(-0.01, 1.1 * high + 0.01)
        return
    low, high = place.get_ylim()
    shown = [tick for tick in TICKS[measure] if low <= tick <= high]
    place.yaxis.set_major_locator(FixedLocator(shown))
    place.yaxis.set_minor_locator(NullLocator())
    place.yaxis.set_major_formatter(
        FuncFormatter(lambda y, _: f"≤ {y:g}" if clipped and y == shown[0] else f"{y:g}")
    )


def _from_one(times: np.ndarray) -> np.ndarray:
    """Where a time stands on its axis."""
    distance = np.asarray(times, np.float64) - 1.0
    return np.arcsinh(distance / NEAR_ONE)


def _to_one(heights: np.ndarray) -> np.ndarray:
    return 1.0 + NEAR_ONE * np.sinh(np.asarray(heights, np.float64))


def _key(policy: str) -> Line2D:
    colour, marker = COLOURS[policy]
    return Line2D([], [], color=colour, marker=marker, markersize=4, linewidth=1.4, label=policy)
