"""Tuned thresholds: within the budget, better than none, the same every time."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from packer.lengths import fig3_lengths
from packer.measures import BalanceMeter
from packer.packing.config import PackingConfig
from packer.packing.packer import PackingError
from packer.packing.whole import pack
from packer.plan import Pieces
from packer.tuning import tune_thresholds
from packer.workload import Workload

WORKLOAD = Workload(crossover=47_100)
CONFIG = PackingConfig(num_micro_batches=4, context_length=131_072, max_tokens=163_840)
LENGTHS = fig3_lengths(20_000, 3)


def test_what_is_promised_is_what_packing_gives() -> None:
    tuning = tune_thresholds(LENGTHS, CONFIG, WORKLOAD, mean_displacement=0.5)
    config = replace(CONFIG, thresholds=tuning.thresholds)
    packing = pack("wlb", Pieces.from_lengths(LENGTHS), config, WORKLOAD)
    assert packing.steps is not None
    meter = BalanceMeter(config)
    meter.add(packing.steps)
    balance = meter.result()
    assert balance.excess == pytest.approx(tuning.excess)
    assert balance.displacement_mean == pytest.approx(tuning.displacement_mean)
    assert tuning.displacement_mean < 0.5
    assert tuning.excess < 0.15


def test_a_larger_budget_balances_better() -> None:
    excess = [
        tune_thresholds(LENGTHS, CONFIG, WORKLOAD, mean_displacement=budget, max_queues=1).excess
        for budget in (0.1, 0.4, 1.0)
    ]
    assert excess[0] > excess[1] > excess[2]


def test_tuning_is_repeatable_and_takes_pieces_as_well_as_lengths() -> None:
    short = LENGTHS[:6000]
    first = tune_thresholds(short, CONFIG, WORKLOAD, mean_displacement=0.5, max_queues=2)
    again = tune_thresholds(
        Pieces.from_lengths(short), CONFIG, WORKLOAD, mean_displacement=0.5, max_queues=2
    )
    assert first == again


def test_a_budget_that_no_queue_meets_gives_no_queue() -> None:
    tuning = tune_thresholds(LENGTHS, CONFIG, WORKLOAD, mean_displacement=1e-6)
    assert tuning.thresholds == ()


def test_only_the_streams_head_decides() -> None:
    head = np.full(4000, 1000)
    config = PackingConfig(num_micro_batches=1, context_length=4000, max_tokens=4000)
    tunings = {
        tune_thresholds(
            np.concatenate([head, np.full(100, length)]),
            config,
            WORKLOAD,
            mean_displacement=0.5,
            max_queues=1,
        )
        for length in (1, 4000)
    }
    assert len(tunings) == 1


def test_thresholds_are_tuned_at_the_intake_that_the_bounds_allow() -> None:
    config = replace(CONFIG, max_pieces=40)
    tuning = tune_thresholds(LENGTHS, config, WORKLOAD, mean_displacement=0.8, max_queues=1)
    assert tuning.thresholds
    pack(
        "wlb", Pieces.from_lengths(LENGTHS), replace(config, thresholds=tuning.thresholds), WORKLOAD
    )


def test_a_stream_shorter_than_a_step_or_without_a_plan() -> None:
    assert tune_thresholds(LENGTHS[:1], CONFIG, WORKLOAD, mean_displacement=0.5).excess == 0
    hopeless = PackingConfig(
        num_micro_batches=4, context_length=64, max_tokens=64, intake_tokens=8, max_displacement=1
    )
    with pytest.raises(PackingError, match="even without outlier queues"):
        tune_thresholds(np.full(100, 64), hopeless, WORKLOAD, mean_displacement=0.5)
    with pytest.raises(ValueError, match="1 to 3"):
        tune_thresholds(LENGTHS, CONFIG, WORKLOAD, mean_displacement=0.5, max_queues=4)
