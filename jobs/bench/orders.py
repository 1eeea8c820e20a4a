"""What the order of a rank's micro-batches brings on the paper's lengths, and the clock's speed."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from packer.clock import Clock, step_times
from packer.lengths import fig3_lengths
from packer.packing.config import PackingConfig
from packer.packing.whole import pack
from packer.plan import Steps
from packer.schedule import Coupling, Schedule
from packer.simulate import cut_lengths
from packer.workload import Workload

CONTEXT_LENGTH = 131_072
PP_SIZE = 4
SETTINGS = ((16, 4, 100), (64, 8, 30))
"""N, dp and about how many steps."""
SHAPES: tuple[tuple[int, Coupling], ...] = (
    (1, "gradient_sync"),
    (1, "lockstep"),
    (2, "gradient_sync"),
    (2, "lockstep"),
)
"""Virtual stages and coupling."""
POLICIES = ("concat", "reorder", "wlb", "lookahead")
WORKLOAD = Workload(crossover=47_100)
REPEATS = 20


def run() -> list[dict[str, Any]]:
    """A row a setting, schedule and policy: schedule time heaviest first and under the best rule.

    `wlb` has one queue, at half the context length. `micro_batches_per_s` is of CPU time, without
    compiling, of the steps of that plan many times over.
    """
    rows = []
    for num, dp_size, steps in SETTINGS:
        for policy in POLICIES:
            plan = _plan(policy, num, steps)
            for virtual_stages, coupling in SHAPES:
                schedule = Schedule(
                    dp_size=dp_size,
                    pp_size=PP_SIZE,
                    virtual_stages=virtual_stages,
                    coupling=coupling,
                )
                rows.append({"policy": policy, **_row(plan, num, schedule)})
    return rows


def _plan(policy: str, num: int, steps: int) -> Steps:
    config = PackingConfig(
        num_micro_batches=num,
        context_length=CONTEXT_LENGTH,
        max_tokens=CONTEXT_LENGTH * 5 // 4,
        thresholds=(CONTEXT_LENGTH // 2,) if policy == "wlb" else (),
    )
    stream_tokens = steps * config.intake_tokens
    pieces = cut_lengths(fig3_lengths(stream_tokens // 1500, seed=0), CONTEXT_LENGTH)
    end = int(np.searchsorted(pieces.position, stream_tokens))
    plan = pack(policy, pieces.take(slice(0, end)), config, WORKLOAD).steps
    assert plan is not None
    return plan


def _row(plan: Steps, num: int, schedule: Schedule) -> dict[str, Any]:
    work, tokens = plan.row_workload.reshape(-1, num), plan.row_tokens.reshape(-1, num)
    plain, best = Clock(schedule, num), Clock(schedule, num, "auto")
    for clock in (plain, best):
        clock.add(work, tokens)
    many = np.tile(work, (REPEATS, 1))
    started = time.process_time()
    step_times(many, schedule)
    seconds = time.process_time() - started
    return {
        "num_micro_batches": num,
        "dp_size": schedule.dp_size,
        "pp_size": schedule.pp_size,
        "virtual_stages": schedule.virtual_stages,
        "coupling": schedule.coupling,
        "steps": plan.num_steps,
        "plain": plain.ratio,
        "best": best.ratio,
        "order": best.order,
        "micro_batches_per_s": many.size / seconds,
    }
