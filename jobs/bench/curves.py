"""`python -m jobs.bench.curves`: the figures, pictures and tables of docs/CHOOSING.md.

    python -m jobs.bench.curves                     simulate, keep, draw
    python -m jobs.bench.curves --draw              draw again what is kept
    python -m jobs.bench.curves --quick --out DIR   a tiny form of it, to see that it works

The figures are modelled times, so what else the machine does touches `documents_per_s` only.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from jobs.bench import machine
from jobs.bench.curves_points import Point, groups, measure, row_of
from jobs.bench.curves_sweeps import FULL, QUICK, Extent, sweeps, windows
from jobs.bench.curves_windows import Windowed

NAME = "curves"
PICTURES = Path(__file__).parents[2] / "docs" / "pictures"
Plans = tuple[Point, ...] | Windowed
"""What is measured in one process, one after the other."""
Task = tuple[Plans, int]
"""And a seed."""


def main(arguments: Sequence[str]) -> None:
    """Simulate every point, keep the rows, draw the pictures."""
    parser = argparse.ArgumentParser(prog="python -m jobs.bench.curves", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="tiny sizes; needs --out")
    parser.add_argument("--draw", action="store_true", help="simulate nothing, draw what is kept")
    parser.add_argument("--out", type=Path, help="write figures and pictures below this folder")
    parser.add_argument("--seeds", type=int, nargs="+", help="other streams than those of the docs")
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args(arguments)
    if options.quick and options.out is None:
        parser.error("--quick would overwrite the figures of the docs; give --out")
    results = options.out or machine.RESULTS
    pictures = options.out / "pictures" if options.out else PICTURES
    kept = results / f"{NAME}.json"
    if not options.draw:
        extent = QUICK if options.quick else FULL
        if options.seeds:
            extent = replace(extent, seeds=tuple(options.seeds))
        rows = run(extent, options.processes)
        kept = machine.save(NAME, rows, folder=results, note=note(extent))
        print(f"{len(rows)} rows in {kept}", file=sys.stderr)
    from jobs.bench.curves_pictures import draw  # matplotlib, which only this needs

    for path in draw(json.loads(kept.read_text())["rows"], pictures):
        print(path, file=sys.stderr)


def run(extent: Extent, processes: int) -> list[dict[str, Any]]:
    """A row for each point of the sweeps, in their order, means over the seeds.

    Args:
        extent: which points, and of how many streams.
        processes: 1 for this one, or how many to start.
    """
    found = sweeps(extent)
    points = list(dict.fromkeys(point for sweep in found.values() for point in sweep))
    windowed = windows(extent)
    plans: list[Plans] = [*groups(points), *windowed]
    tasks = [(some, seed) for some in plans for seed in extent.seeds]
    runs: dict[Point | Windowed, dict[int, dict[str, Any]]] = {}
    started = time.perf_counter()
    for number, ((some, seed), figures) in enumerate(_measured(tasks, processes), 1):
        for one, figure in zip(_each(some), figures, strict=True):
            runs.setdefault(one, {})[seed] = figure
        passed = time.perf_counter() - started
        print(f"{number} of {len(tasks)} groups of plans, {passed:.0f} s", file=sys.stderr)

    def in_order(one: Point | Windowed) -> list[dict[str, Any]]:
        return [runs[one][seed] for seed in extent.seeds]

    rows = [
        row_of(
            point,
            {name: sweep.index(point) for name, sweep in found.items() if point in sweep},
            in_order(point),
        )
        for point in points
    ]
    return rows + [one.row(place, in_order(one)) for place, one in enumerate(windowed)]


def note(extent: Extent) -> str:
    """What the figures are means of."""
    seeds = "seed" if len(extent.seeds) == 1 else "seeds"
    seeds += " " + " and ".join(map(str, extent.seeds))
    steps = ", ".join(f"{steps} at N = {num}" for num, _, steps in extent.sizes)
    return f"Means over {seeds}; steps of a run: about {steps}."


def _measured(tasks: Sequence[Task], processes: int) -> Iterator[tuple[Task, list[dict[str, Any]]]]:
    if processes == 1:
        yield from map(_measure, tasks)
        return
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        yield from pool.imap_unordered(_measure, tasks)


def _measure(task: Task) -> tuple[Task, list[dict[str, Any]]]:
    some, seed = task
    return task, [some.measure(seed)] if isinstance(some, Windowed) else measure(some, seed)


def _each(some: Plans) -> Sequence[Point | Windowed]:
    return (some,) if isinstance(some, Windowed) else some


if __name__ == "__main__":
    main(sys.argv[1:])
