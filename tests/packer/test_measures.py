"""Measures against numbers worked out by hand and straight from their definitions."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packer.clock import step_times
from packer.lengths import fig3_lengths
from packer.measures import BalanceMeter
from packer.orders import slot_of
from packer.packing.config import PackingConfig
from packer.packing.whole import pack
from packer.plan import Pieces, Steps
from packer.schedule import Schedule
from packer.workload import Workload

WORKLOAD = Workload(crossover=8)
CONFIG = PackingConfig(num_micro_batches=2, context_length=8, max_tokens=12)


def two_steps() -> Steps:
    """Stream 8 4 4 | 4 6 6 with A = 16; a 4 of step 0 and nothing else runs a step late."""
    pieces = Pieces.from_lengths(np.array([8, 4, 4, 4, 6, 6]))
    order = np.array([0, 1, 4, 2, 3, 5])
    # step 5: [8] [4]; step 6: [6] [4 4 6]
    work = np.array([4000, 1000, 3000, 2000], np.int64)
    return Steps(
        first_step=5,
        num_micro_batches=2,
        pieces=pieces.take(order),
        row_offsets=np.array([0, 1, 2, 3, 6]),
        row_workload=work,
    )


def test_two_steps_measured_by_hand() -> None:
    meter = BalanceMeter(CONFIG, schedule=Schedule(dp_size=2, pp_size=2), first_step=5)
    meter.add(two_steps())
    balance = meter.result()
    assert (balance.steps, balance.placed_pieces, balance.placed_tokens) == (2, 6, 32)
    assert balance.total_workload == 10_000
    assert balance.imbalance_degree == pytest.approx(7000 / 5000)
    assert balance.excess == pytest.approx(0.4)
    assert balance.imbalance_degree_mean == pytest.approx((4000 / 2500 + 3000 / 2500) / 2, rel=1e-6)
    assert balance.sum_of_maxima_per_token == pytest.approx(7000 / 256 / 32)
    per_token = balance.total_workload / 256 / 32
    assert balance.schedule_time_per_token == pytest.approx(balance.schedule_time * per_token)
    assert balance.displacement_mean == pytest.approx(4 / 32)
    assert balance.delay_mean == pytest.approx(4 / 32)
    assert balance.displacement_max == 1
    assert (balance.tokens_per_step_min, balance.tokens_per_step_max) == (12, 20)
    assert balance.tokens_per_step_cv == pytest.approx(4 / 16)
    long_shares = np.array([8 / 12, 12 / 20])
    assert balance.long_share_cv == pytest.approx(long_shares.std() / long_shares.mean(), rel=1e-5)
    assert balance.source_share_cv == 0.0
    assert (balance.max_tokens_seen, balance.max_pieces_seen) == (14, 3)
    # one micro-batch a rank: the slower rank decides, and two stages take one more of it
    assert balance.lockstep_time == pytest.approx(7000 / 5000)
    assert balance.schedule_time == pytest.approx(7000 / 5000)


def by_definition(steps: Steps, config: PackingConfig, dp_size: int, first_step: int) -> dict:
    """The same measures in floats, piece by piece."""
    num = steps.num_micro_batches
    work = steps.row_workload.reshape(-1, num)
    tokens = steps.pieces.tokens
    arrival = steps.pieces.position // config.intake_tokens
    delay = steps.piece_step - first_step - arrival
    step_tokens = steps.row_tokens.reshape(-1, num).sum(axis=1)
    lockstep = sum(
        max(
            row[slot_of(micro_batch=index, dp_rank=rank, dp_size=dp_size)]
            for rank in range(dp_size)
        )
        for row in work
        for index in range(num // dp_size)
    )
    shares = []
    for source in range(3):
        mine = [
            tokens[(steps.piece_step == step) & (steps.pieces.source == source)].sum()
            for step in range(steps.first_step, steps.first_step + steps.num_steps)
        ]
        share = np.array(mine) / step_tokens
        shares.append(share.std() / share.mean() if share.any() else 0.0)
    return {
        "imbalance_degree": work.max(axis=1).sum() / work.mean(axis=1).sum(),
        "imbalance_degree_mean": (work.max(axis=1) / work.mean(axis=1)).mean(),
        "displacement_mean": np.average(np.abs(delay), weights=tokens),
        "delay_mean": np.average(delay, weights=tokens),
        "tokens_per_step_cv": step_tokens.std() / step_tokens.mean(),
        "lockstep_time": lockstep / (work.sum() / dp_size),
        "source_share_cv": max(shares),
    }


def packed_steps(seed: int) -> tuple[Steps, PackingConfig]:
    lengths = fig3_lengths(3000, seed) // 1024 + 1
    config = PackingConfig(
        num_micro_batches=4, context_length=129, max_tokens=160, thresholds=(60,)
    )
    pieces = replace(Pieces.from_lengths(lengths), source=np.arange(len(lengths)) % 3)
    steps = pack("wlb", pieces, config, Workload(crossover=46)).steps
    assert steps is not None
    return steps, config


@pytest.mark.parametrize("dp_size", [1, 2, 4])
def test_measures_are_their_definitions(dp_size: int) -> None:
    steps, config = packed_steps(seed=1)
    schedule = Schedule(dp_size=dp_size, pp_size=3)
    meter = BalanceMeter(config, schedule=schedule, num_sources=3)
    meter.add(steps)
    found = meter.result().as_dict()
    for name, value in by_definition(steps, config, dp_size, first_step=0).items():
        assert found[name] == pytest.approx(value, rel=1e-4), name
    assert meter.result().displacement_mean > 0
    assert meter.result().schedule_time > 1


def test_schedule_time_is_the_clocks_at_every_schedule_and_order() -> None:
    steps, config = packed_steps(seed=1)
    work, tokens = steps.row_workload.reshape(-1, 4), steps.row_tokens.reshape(-1, 4)
    schedule = Schedule(dp_size=2, pp_size=2, virtual_stages=2, coupling="lockstep", head_cost=0.3)
    found = {}
    for order in ("identity", "light_first_1", "auto"):
        meter = BalanceMeter(config, schedule=schedule, order=order, num_sources=3)
        meter.add(steps)
        found[order] = meter.result()
    assert (found["auto"].virtual_stages, found["auto"].coupling) == (2, "lockstep")
    assert found["light_first_1"].micro_batch_order == "light_first_1"
    times = {
        order: int(step_times(work, schedule, tokens=tokens, order=order).sum())
        for order in found
        if order != "auto"
    }  # two micro-batches a rank: no rule does more than these
    for order, time in times.items():
        ratio = time / times["identity"] * found["identity"].schedule_time
        assert found[order].schedule_time == pytest.approx(ratio)
    assert found["auto"].schedule_time == min(row.schedule_time for row in found.values())
    assert times["identity"] != times["light_first_1"]


@given(st.data())
@settings(max_examples=20, deadline=None)
def test_measures_do_not_depend_on_the_windows(data: st.DataObject) -> None:
    steps, config = packed_steps(seed=2)
    border = data.draw(st.integers(1, steps.num_steps - 1))
    schedule = Schedule(dp_size=2)
    whole, windows = (BalanceMeter(config, schedule=schedule, num_sources=3) for _ in range(2))
    whole.add(steps)
    windows.add(steps.take_steps(border, steps.num_steps))
    windows.add(steps.take_steps(0, border))
    assert windows.result() == whole.result()


def test_nothing_measured_is_refused() -> None:
    with pytest.raises(ValueError, match="no step"):
        BalanceMeter(CONFIG).result()
    with pytest.raises(ValueError, match="dp_size 3 does not divide the 2"):
        BalanceMeter(CONFIG, schedule=Schedule(dp_size=3))
    other = PackingConfig(num_micro_batches=4, context_length=8, max_tokens=8)
    with pytest.raises(ValueError, match="expected 4"):
        BalanceMeter(other).add(two_steps())
