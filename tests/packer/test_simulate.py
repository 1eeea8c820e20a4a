"""Simulation: the same documents through every policy."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np
import pytest

from packer.lengths import fig3_lengths
from packer.measures import Balance
from packer.packing.config import PackingConfig
from packer.packing.packer import POLICIES, PackingError
from packer.schedule import Schedule
from packer.simulate import cut_lengths, simulate
from packer.workload import Workload

S = 131_072


def run(lengths: np.ndarray, policies: tuple[str, ...], **options: Any) -> list[dict[str, Any]]:
    schedule = Schedule(dp_size=2, pp_size=4)
    settings: dict[str, Any] = {
        "num_micro_batches": 8,
        "context_length": S,
        "max_tokens": S * 5 // 4,
        "schedule": schedule,
        "thresholds": (S // 2,),
    }
    others = {name: options.pop(name) for name in ("max_queues", "steps") if name in options}
    config = PackingConfig(**(settings | options))
    workload = Workload(crossover=47_100)
    return simulate(lengths, policies, config, workload=workload, schedule=schedule, **others)


def test_policies_stand_in_the_order_that_balance_asks() -> None:
    policies = ("concat", "reorder", "wlb", "wlb_printed")
    rows = run(fig3_lengths(40_000, 0), policies)
    assert [row["policy"] for row in rows] == list(policies)
    concat, reorder, wlb, printed = rows  # concat cuts, so its ratios stand aside
    assert wlb["excess"] < printed["excess"] < reorder["excess"]
    assert wlb["schedule_time"] < reorder["schedule_time"]
    assert wlb["lockstep_time"] < reorder["lockstep_time"]
    assert (
        concat["displacement_mean"] == reorder["displacement_mean"] == 0 < wlb["displacement_mean"]
    )
    names = {field.name for field in fields(Balance)}
    for row in rows:
        assert names < set(row)
        assert row["documents_per_s"] > 0
        assert row["placed_tokens"] + row["tail_tokens"] == fig3_lengths(40_000, 0).sum()


def test_policies_that_write_plans_break_no_bound() -> None:
    rows = run(fig3_lengths(20_000, 1), POLICIES, max_pieces=120)
    for row in rows:
        assert not any(row["violations"].values())


def test_violations_of_the_printed_algorithm_are_counted() -> None:
    options = {"max_pieces": 60, "max_displacement": 2, "max_tokens": S}
    (row,) = run(fig3_lengths(20_000, 1), ("wlb_printed",), **options)
    assert row["violations"]["max_tokens"] == 0
    assert row["violations"]["max_pieces"] > 0
    assert row["violations"]["max_displacement"] > 0
    assert row["violations"]["steps_left"] > 0


def test_long_documents_are_cut_to_the_context_length() -> None:
    pieces = cut_lengths(np.array([10, 3, 4], np.uint32), 4)
    assert pieces.tokens.tolist() == [4, 4, 2, 3, 4]
    assert pieces.doc_id.tolist() == [0, 0, 0, 1, 2]
    assert pieces.doc_start.tolist() == [0, 4, 8, 0, 0]
    assert pieces.position.tolist() == [0, 4, 8, 10, 13]
    assert pieces.num_targets.tolist() == [4, 4, 1, 2, 3]


def test_steps_limit_the_documents() -> None:
    (row,) = run(fig3_lengths(20_000, 2), ("reorder",), steps=10)
    assert 9 <= row["steps"] <= 10
    assert row["tail_tokens"] < row["intake_tokens"]


def test_thresholds_are_tuned_where_none_are_given() -> None:
    (row,) = run(fig3_lengths(10_000, 2), ("wlb",), thresholds=(), max_queues=1)
    assert row["thresholds"]
    assert row["tuning_seconds"] > 0
    assert row["displacement_mean"] <= 0.5


def test_documents_for_less_than_a_step_are_refused() -> None:
    with pytest.raises(ValueError, match="less than a step"):
        run(np.array([100]), ("reorder",))
    with pytest.raises(ValueError, match="at least one document"):
        run(np.array([], np.int64), ("reorder",))
    with pytest.raises(PackingError, match="first_fit"):
        run(np.array([100]), ("first_fit",))
