"""The curves of docs/CHOOSING.md: what is simulated, shown and kept up to date."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jobs.bench import curves, tables
from jobs.bench.curves_points import CONTEXT_LENGTH, OPTIONS, POLICIES, Point, groups, plain, row_of
from jobs.bench.curves_series import PICTURES, digest, panels_of, rows_of
from jobs.bench.curves_sweeps import FULL, QUICK, sweeps, windows
from jobs.bench.curves_tables import choice_table, effort_table, short_choice_table, windows_table
from jobs.bench.curves_windows import BORDER, Windowed, excesses
from jobs.bench.machine import RESULTS
from packer.lengths import fig3_lengths
from packer.packing.config import PackingConfig
from packer.schedule import ONE_RANK
from packer.simulate import simulate
from packer.workload import Workload

PAGE = tables.ROOT / "docs" / "CHOOSING.md"
POINT = Point(policy="lookahead", num_micro_batches=16, dp_size=4, steps=8)


def row(**fields: Any) -> dict[str, Any]:
    figures = {
        "excess": 0.5,
        "schedule_time": 1.25,
        "lockstep_time": 1.0,
        "displacement_mean": 0.0,
        "tokens_per_step_cv": 0.125,
        "documents_per_s": 1e6,
        "max_tokens_seen": 9,
        "steps": 8,
    }
    options = {name: fields.pop(name) for name in list(fields) if name not in figures}
    places = options.pop("sweeps", {})
    return row_of(replace(POINT, **options), places, [figures | fields])


def test_a_point_has_the_means_of_its_seeds() -> None:
    runs = [row(excess=excess, steps=8) for excess in (0.25, 0.5)]
    runs = [run | {"steps": 8 - number} for number, run in enumerate(runs)]
    kept = row_of(POINT, {"size": 1, "band": 0}, runs)
    assert (kept["excess"], kept["excess_spread"]) == (0.375, 0.25)
    assert kept["steps_made"] == 7
    assert rows_of([kept, row(sweeps={"size": 0}), row()], "size")[1] is kept
    assert Point(**{name: kept[name] for name in Point.__dataclass_fields__}) == POINT


def test_points_that_differ_in_what_a_policy_ignores_are_one() -> None:
    other = replace(POINT, policy="wlb", token_band=0.5, window_steps=9)
    assert plain(other) == replace(POINT, policy="wlb")
    assert plain(replace(POINT, token_band=0.5)) == replace(POINT, token_band=0.5)
    for points in sweeps(FULL).values():
        assert len(set(map(plain, points))) == len(points)


@pytest.mark.parametrize("policy", [name for name in POLICIES if name != "lookahead"])
def test_a_policy_ignores_what_is_said_to_be_ignored(policy: str) -> None:
    options: dict[str, Any] = {
        "max_tokens": 2 * CONTEXT_LENGTH,
        "mean_displacement": 0.125,
        "token_band": 0.01,
        "window_steps": 4,
        "moves_per_piece": 7,
        "schedule": None,  # for the objective "max"
    }
    read = POLICIES[policy]
    names = {"max_tokens": "max_tokens_over_context", "schedule": "objective"}
    assert {names.get(name, name) for name in options} == OPTIONS - {"global_batches"}
    lengths = fig3_lengths(4000, 3)

    def figures(**changed: Any) -> dict[str, Any]:
        (found,) = simulate(
            lengths,
            [policy],
            PackingConfig(
                **{
                    "num_micro_batches": 4,
                    "context_length": CONTEXT_LENGTH,
                    "max_tokens": CONTEXT_LENGTH * 5 // 4,
                    "schedule": ONE_RANK,
                    **changed,
                }
            ),
            workload=Workload(crossover=47_100),
        )
        times = ("seconds", "documents_per_s", "tuning_seconds")
        return {name: figure for name, figure in found.items() if name not in times}

    usual = figures()
    for name, value in options.items():
        assert (figures(**{name: value}) != usual) is (names.get(name, name) in read), name


def test_every_point_is_in_one_group_and_a_group_shares_its_thresholds() -> None:
    points = [point for sweep in sweeps(FULL).values() for point in sweep]
    found = groups(points)
    together = [point for group in found for point in group]
    assert len(together) == len(set(together))
    assert set(together) == set(points)
    for group in found:
        tuned_for = {
            (
                point.policy,
                point.num_micro_batches,
                point.steps,
                point.max_tokens_over_context,
                point.mean_displacement,
            )
            for point in group
        }
        assert len(tuned_for) == 1
    assert any(len(group) > 1 and group[0].policy == "wlb" for group in found)


def test_the_table_of_choice_takes_the_first_policy_that_is_nearly_best() -> None:
    times = {"reorder": 1.0099, "wlb": 1.0, "lookahead": 0.9999}
    clusters = (
        ({"num_micro_batches": 16, "pp_size": 1}, 1.0),
        ({"num_micro_batches": 64, "pp_size": 1, "coupling": "lockstep"}, 1.5),
        ({"num_micro_batches": 64, "virtual_stages": 2}, 200.0),
    )
    rows = [
        row(
            policy=policy,
            sweeps={"choice": 3 * number + place},
            schedule_time=1 + (time - 1) * factor,
            displacement_mean=place / 4,
            **cluster,
        )
        for number, (cluster, factor) in enumerate(clusters)
        for place, (policy, time) in enumerate(times.items())
    ]
    rows = [row(sweeps={"size": 0}), *reversed(rows)]
    header = [
        "| cluster | N, dp | `reorder` | `wlb` | `lookahead` | enough |",
        "|---|---|---|---|---|---|",
    ]
    lines = [
        "| no PP | 16, 4 | 1.010 (0.00) | 1.000 (0.25) | 1.000 (0.50) | `reorder` |",
        "| no PP, lockstep | 64, 4 | 1.015 (0.00) | 1.000 (0.25) | 1.000 (0.50) | `wlb` |",
        "| PP 4, interleaved by 2 | 64, 4 | 2.980 (0.00) | 1.000 (0.25) | 0.980 (0.50) "
        "| `lookahead` |",
    ]
    assert choice_table(rows) == header + lines
    assert short_choice_table(rows) == header + lines[1:]


def test_borders_cost_what_the_steps_beside_them_have_more() -> None:
    even, uneven = [2, 2, 2], [4, 1, 1]
    beside = {12 - 1, 12 + BORDER - 1, 24 - BORDER}
    work = np.array([uneven if step in beside | {0, 35} else even for step in range(36)])
    every, inside = excesses(work, 12)
    assert every == pytest.approx(3 / (36 - 2 * BORDER))  # the stream's own ends are in neither
    assert inside == 0.0
    work[BORDER] = uneven
    assert excesses(work, 12)[1] == pytest.approx(1 / (3 * (12 - 2 * BORDER)))
    assert excesses(work, 36)[0] == excesses(work, 36)[1]
    assert excesses(work[:30], 12)[1] == pytest.approx(1 / (2 * (12 - 2 * BORDER)))


def test_the_table_of_windows_shows_what_borders_cost() -> None:
    runs = [{"excess": 0.05 + seed / 100, "excess_inside": 0.04} for seed in range(2)]
    kept = Windowed(num_micro_batches=16, steps=64, window_steps=32).row(0, runs)
    assert windows_table([kept])[2:] == ["| 16 | 64 | 32 | 0.0550 | 0.0400 | 0.0150 |"]
    assert effort_table([row(sweeps={"effort": 0}, moves_per_piece=99)])[2:] == [
        "| 16 | 99 moves a piece | 0.5000 | 1,000,000 |"
    ]


def test_a_curve_has_its_points_in_order_and_others_are_left_out() -> None:
    rows = [
        row(sweeps={"max_tokens": place}, max_tokens_over_context=factor, excess=excess)
        for place, (factor, excess) in enumerate(((1.5, 0.25), (1.0, 0.75)))
    ]
    rows += [row(policy="concat", sweeps={"max_tokens": 2}), row(excess=9.0)]
    (picture,) = [picture for picture in PICTURES if picture.sweep == "max_tokens"]
    ((excess, *_),) = panels_of(picture, rows)
    assert excess.title == "N 16, dp 4, pp 4"
    assert excess.curves == {"lookahead": [(1.0, 0.75), (1.5, 0.25)], "concat": [(1.25, 0.5)]}


def test_bands_stand_from_none_to_the_narrowest() -> None:
    rows = [row(sweeps={"band": 0}, token_band=band) for band in (0.01, 0.0, 0.1)]
    (picture,) = [picture for picture in PICTURES if picture.sweep == "band"]
    ((panel, *_),) = panels_of(picture, rows)
    assert [x for x, _ in panel.curves["lookahead"]] == [0.0, 0.1, 0.01]


@pytest.mark.slow
def test_the_command_simulates_draws_and_draws_the_same_again(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    curves.main(["--quick", "--out", str(tmp_path), "--processes", "1"])
    kept = json.loads((tmp_path / "curves.json").read_text())
    assert {name for row in kept["rows"] for name in row["sweeps"]} == {*sweeps(QUICK), "windows"}
    assert len(rows_of(kept["rows"], "windows")) == len(windows(QUICK))
    assert {row.get("policy", "lookahead") for row in kept["rows"]} == set(POLICIES)
    drawn = {path.name: path.read_bytes() for path in (tmp_path / "pictures").iterdir()}
    assert set(drawn) == {picture.file for picture in PICTURES}
    for picture in PICTURES:
        text = drawn[picture.file].decode()
        assert digest(panels_of(picture, kept["rows"])) in text
        assert all(f">{policy}</text>" in text for policy in POLICIES)
        assert not re.search(r"\d{4}-\d\d-\d\d", text)
    curves.main(["--draw", "--out", str(tmp_path)])
    again = {path.name: path.read_bytes() for path in (tmp_path / "pictures").iterdir()}
    assert again == drawn


def test_a_quick_look_does_not_replace_the_docs(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        curves.main(["--quick"])
    assert "--out" in capsys.readouterr().err


def test_the_pages_show_what_was_kept() -> None:
    for page in tables.PAGES:
        text = (tables.ROOT / page).read_text(encoding="utf-8")
        assert tables.render(page, text) == text, f"{page}: run python -m jobs.bench.tables"


def test_the_page_shows_every_picture_and_each_is_of_the_rows_that_were_kept() -> None:
    shown = re.findall(r"!\[[^\]]+\]\((pictures/[^)]+)\)", PAGE.read_text(encoding="utf-8"))
    assert sorted(shown) == sorted(f"pictures/{picture.file}" for picture in PICTURES)
    kept = json.loads((RESULTS / "curves.json").read_text())["rows"]
    for picture in PICTURES:
        text = (curves.PICTURES / picture.file).read_text(encoding="utf-8")
        assert digest(panels_of(picture, kept)) in text, (
            f"{picture.file} is of other rows: run python -m jobs.bench.curves --draw"
        )
