"""The losses as an SVG file: a line a policy, the mean of its seeds, in the band that they span."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from jobs.bench.curves_pictures import COLOURS, HEIGHT, WIDTH, svg_of
from jobs.bench.loss_tables import REFERENCE, by_policy

FILE = "loss.svg"
Rows = list[dict[str, Any]]
Lines = dict[str, tuple[np.ndarray, np.ndarray]]
"""By policy: steps, (points,), and values, (seeds, points)."""


def draw(rows: Rows, every: int, folder: Path) -> Path:
    """Write the picture; the folder is made.

    Args:
        rows: as `jobs.bench.loss_curves` keeps them.
        every: steps whose training losses are one point.
        folder: where to.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / FILE
    path.write_text(svg_of(lambda: figure_of(rows, every), digest(rows)), encoding="utf-8")
    return path


def digest(rows: Rows) -> str:
    """Names what is drawn; the picture carries it."""
    told = [[row["policy"], row["seed"], row["loss"], row["held_out"]] for row in rows]
    return hashlib.sha256(json.dumps(told).encode()).hexdigest()[:32]


def figure_of(rows: Rows, every: int) -> Figure:
    """Training loss, held-out loss, and the latter less that of the reference."""
    figure = Figure(figsize=(3 * WIDTH, HEIGHT + 0.3), layout="constrained")
    axes = figure.subplots(1, 3)
    held_out = held_out_lines(rows)
    titles = (
        f"training loss, means of {every} steps",
        "held-out loss",
        f"held-out loss less {REFERENCE}'s, same seed",
    )
    panels = (training_lines(rows, every), held_out, beside_reference(held_out))
    for place, title, lines in zip(axes, titles, panels, strict=True):
        place.set_title(title, fontsize=8, loc="left")
        place.set_xlabel("steps")
        _draw(place, lines)
    figure.legend(
        handles=[
            Line2D([], [], color=COLOURS[policy][0], linewidth=1.4, label=policy)
            for policy in held_out
        ],
        loc="outside upper center",
        ncols=len(held_out),
        frameon=False,
    )
    return figure


def training_lines(rows: Rows, every: int) -> Lines:
    """Means of `every` steps, each at the last of them; steps that fill none are left out."""
    lines: Lines = {}
    for policy, runs in by_policy(rows).items():
        losses = np.array([row["loss"] for row in runs])  # (seeds, steps)
        count = losses.shape[1] // every
        means = losses[:, : count * every].reshape(len(runs), count, every).mean(axis=2)
        lines[policy] = every * np.arange(1, count + 1), means
    return lines


def held_out_lines(rows: Rows) -> Lines:
    """As they were measured."""
    return {
        policy: (
            np.array([step for step, _ in runs[0]["held_out"]]),
            np.array([[loss for _, loss in row["held_out"]] for row in runs]),
        )
        for policy, runs in by_policy(rows).items()
    }


def beside_reference(lines: Lines) -> Lines:
    """Each policy less the reference with the same seed; the reference less its own mean."""
    steps, reference = lines[REFERENCE]
    return {
        policy: (
            steps,
            values - (reference.mean(axis=0) if policy == REFERENCE else reference),
        )
        for policy, (_, values) in lines.items()
    }


def _draw(place: Axes, lines: Lines) -> None:
    for policy, (steps, values) in lines.items():
        colour, _ = COLOURS[policy]
        low, high = values.min(axis=0), values.max(axis=0)
        place.fill_between(steps, low, high, color=colour, alpha=0.2, linewidth=0)
        place.plot(steps, values.mean(axis=0), color=colour, linewidth=1.2)
