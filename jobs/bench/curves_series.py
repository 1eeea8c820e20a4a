"""What every picture shows, as numbers: panels of curves, read from the kept rows."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

Rows = Sequence[dict[str, Any]]
Curve = list[tuple[float, float]]
"""x and y of its points, from left to right."""

MEASURES = ("excess", "schedule_time", "tokens_per_step_cv")
"""The columns of every picture."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """One picture: a row of panels for each N, or a single one where N is the axis."""

    name: str
    sweep: str
    x: str
    """Field of the kept rows."""
    label: str
    """Of the axis, with the unit."""

    @property
    def over_sizes(self) -> bool:
        return self.x == "num_micro_batches"

    def across(self, row: dict[str, Any]) -> float:
        """How far to the right a row stands: bands from none to the narrowest."""
        return -(row[self.x] or 1.0) if self.x == "token_band" else row[self.x]

    @property
    def file(self) -> str:
        return f"{self.name}.svg"


PICTURES = (
    Picture(
        name="max-tokens",
        sweep="max_tokens",
        x="max_tokens_over_context",
        label="S_max over S",
    ),
    Picture(
        name="displacement",
        sweep="displacement",
        x="displacement_mean",
        label="mean displacement, steps",
    ),
    Picture(
        name="size",
        sweep="size",
        x="num_micro_batches",
        label="N, micro-batches a step",
    ),
    Picture(
        name="token-band",
        sweep="band",
        x="token_band",
        label="band of a step's tokens",
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """The curves of one measure at one N, by policy; a curve of one point holds everywhere."""

    title: str
    measure: str
    curves: dict[str, Curve]


def rows_of(rows: Rows, sweep: str) -> list[dict[str, Any]]:
    """The kept rows of a sweep, in its order."""
    mine = [row for row in rows if sweep in row["sweeps"]]
    return sorted(mine, key=lambda row: row["sweeps"][sweep])


def panels_of(picture: Picture, rows: Rows) -> list[list[Panel]]:
    """The panels of a picture, a list for each row of them."""
    mine = rows_of(rows, picture.sweep)
    if picture.over_sizes:
        return [_line(picture, mine, "every N")]
    sizes = dict.fromkeys((row["num_micro_batches"], row["dp_size"]) for row in mine)
    return [
        _line(
            picture,
            [row for row in mine if row["num_micro_batches"] == num],
            f"N {num}, dp {dp_size}, pp 4",
        )
        for num, dp_size in sizes
    ]


def digest(lines: Sequence[Sequence[Panel]]) -> str:
    """Names what is drawn; a picture carries it, so that one can tell of which rows it is."""
    told = [[[panel.title, panel.measure, panel.curves] for panel in line] for line in lines]
    return hashlib.sha256(json.dumps(told).encode()).hexdigest()[:32]


def _line(picture: Picture, rows: Rows, title: str) -> list[Panel]:
    policies = dict.fromkeys(row["policy"] for row in rows)
    return [
        Panel(
            title=title,
            measure=measure,
            curves={
                policy: [
                    (float(row[picture.x]), float(row[measure]))
                    for row in sorted(rows, key=picture.across)
                    if row["policy"] == policy
                ]
                for policy in policies
            },
        )
        for measure in MEASURES
    ]
