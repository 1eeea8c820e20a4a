"""What a fault came to, one case a try; as a table and as JSON lines."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from rich.console import Console
from rich.table import Table


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One try of a fault: what was done, whether what must hold held, and what the user saw."""

    fault: str
    done: str
    held: bool
    seen: str = ""
    figures: dict[str, Any] = field(default_factory=dict)

    def as_json(self) -> str:
        return json.dumps(asdict(self), ensure_ascii=False)


def show(cases: Sequence[Case]) -> None:
    """A row a fault: tries, how many held, sums of the figures; below it what did not hold."""
    table = Table(title="faults", title_justify="left")
    for name in ("fault", "tried", "held", "in all"):
        table.add_column(name, justify="right" if name in ("tried", "held") else "left")
    for fault in dict.fromkeys(case.fault for case in cases):
        mine = [case for case in cases if case.fault == fault]
        table.add_row(fault, str(len(mine)), str(sum(case.held for case in mine)), _sums(mine))
    console = Console(highlight=False, width=120)
    console.print(table)
    for case in cases:
        if not case.held:
            console.print(f"{case.fault}: {case.done}: {case.seen}", markup=False, soft_wrap=True)


def _sums(cases: Sequence[Case]) -> str:
    """Figures of all cases: numbers added, largest kept where the name says so."""
    totals: dict[str, float] = {}
    for case in cases:
        for name, value in case.figures.items():
            if isinstance(value, bool) or not isinstance(value, int | float):
                continue
            most = name.startswith("most")
            before = totals.get(name, 0)
            totals[name] = max(before, value) if most else before + value
    return ", ".join(f"{value:,.4g} {name}" for name, value in totals.items())
