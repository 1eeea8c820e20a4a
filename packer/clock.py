"""The pipeline's clock: how long a cluster takes for a step's micro-batches.

A pipeline rank runs one forward or backward at a time, in an order that its schedule fixes; a
forward waits for the stage before, a backward for the stage after; sending takes no time. In
lockstep a forward or backward starts when all data-parallel ranks are there, and ends on all of
them with the slowest. Times are integers: a forward of a micro-batch of workload w takes stage s
`shares[s] * w * pass_times[0]`, where `shares` and `pass_times` are those of the schedule.
"""

from __future__ import annotations

import numpy as np

from packer.orders import AUTO, ORDERS, check_rule, slots_of_rank
from packer.plan import Int64
from packer.program import program_of
from packer.schedule import Schedule
from packer.schedule_kernels import run_steps

LONGEST_STEP = 1 << 62
"""Bound on a step's time, so that integers of 64 bits hold it."""
EVEN_SCALE = 256
"""Mean workloads are rounded to one part in so many."""
WORTH_A_CHANGE = 1000
"""Another order than the plain one must save one part in so many of the time."""


def step_times(
    work: np.ndarray,
    schedule: Schedule,
    *,
    tokens: np.ndarray | None = None,
    order: str = "identity",
) -> Int64:
    """Time of each step, (steps,).

    Args:
        work: workload of each step's slots, (steps, num_micro_batches).
        schedule: how they run.
        tokens: of the slots, of the same shape; needed where tokens cost something by themselves.
        order: rule of `packer.orders` by which a rank runs its micro-batches.

    Raises:
        ValueError: the schedule cannot run so many micro-batches, no such rule, or no `tokens`
            where they are needed.

    Example:
        >>> step_times(np.array([[1, 1, 1]]), Schedule(pp_size=2))  # (3 + 2 - 1) times 1 + 2
        array([12])
    """
    num = schedule.num_per_rank(work.shape[1])
    slots = [
        slots_of_rank(order, dp_rank=rank, dp_size=schedule.dp_size, num=num)
        for rank in range(schedule.dp_size)
    ]
    return _times(work, tokens, schedule, num, np.array(slots, np.int64).ravel())


def even_step_times(
    total_work: np.ndarray,
    num_micro_batches: int,
    schedule: Schedule,
    *,
    total_tokens: np.ndarray | None = None,
) -> Int64:
    """Time of each step, were its work and tokens spread equally over its slots, in 1/EVEN_SCALE.

    Args:
        total_work: of each step, (steps,).
        num_micro_batches: slots of a step.
        schedule: how they run.
        total_tokens: of each step, (steps,), where tokens cost something by themselves.
    """
    num = schedule.num_per_rank(num_micro_batches)

    def spread(total: np.ndarray) -> np.ndarray:
        mean = (total * EVEN_SCALE + num_micro_batches // 2) // num_micro_batches
        return np.repeat(mean[:, None], num, axis=1)  # (steps, num)

    tokens = None if total_tokens is None else spread(total_tokens)
    return _times(spread(total_work), tokens, schedule, num, np.arange(num))


class Clock:
    """Adds up the times of steps, under one order of micro-batches or under all of them.

    Args:
        schedule: how they run.
        num_micro_batches: N, of a step.
        order: a rule of `packer.orders`, or "auto" for the one of least time.

    Raises:
        ValueError: the schedule cannot run so many micro-batches, or no such rule.
    """

    def __init__(self, schedule: Schedule, num_micro_batches: int, order: str = "identity") -> None:
        schedule.num_per_rank(num_micro_batches)
        if order != AUTO:
            check_rule(order)
        self._schedule, self._num = schedule, num_micro_batches
        rules = (order,) if order != AUTO else tuple(ORDERS)
        if schedule.pp_size == 1 and order == AUTO:
            rules = ("identity",)  # a sum, whatever the order
        self._times = dict.fromkeys(rules, 0)
        self._even = 0

    def add(self, work: np.ndarray, tokens: np.ndarray) -> None:
        """Count some more steps: workload and tokens of their slots, (steps, num_micro_batches)."""
        for rule in self._times:
            times = step_times(work, self._schedule, tokens=tokens, order=rule)
            self._times[rule] += int(times.sum())
        totals = {"total_tokens": tokens.sum(axis=1)}
        even = even_step_times(work.sum(axis=1), self._num, self._schedule, **totals)
        self._even += int(even.sum())

    @property
    def order(self) -> str:
        """The rule of least time so far; "identity" where none saves a thousandth."""
        return choose_order(self._times)

    @property
    def time(self) -> int:
        """Time of all steps under `order`."""
        return self._times[self.order]

    @property
    def ratio(self) -> float:
        """Time of all steps under `order`, over the same work in equal micro-batches."""
        return self._times[self.order] * EVEN_SCALE / self._even


def choose_order(times: dict[str, int]) -> str:
    """The rule of least time, the first of equals; "identity" where that saves next to nothing."""
    best = min(times, key=lambda rule: times[rule])
    plain = times.get("identity", 0)
    return "identity" if 0 < plain - times[best] < plain / WORTH_A_CHANGE else best


def _times(
    work: np.ndarray, tokens: np.ndarray | None, schedule: Schedule, num: int, slots: Int64
) -> Int64:
    """Times of steps whose data-parallel ranks run `slots`, (ranks * num,)."""
    first_cost, last_cost = schedule.token_costs
    if tokens is None:
        if first_cost or last_cost:
            raise ValueError(f"give tokens: they cost something by themselves in {schedule}")
        tokens = np.zeros_like(work)
    shares = np.array(schedule.shares, np.int64)
    token_costs = np.zeros_like(shares)
    token_costs[0] = first_cost * shares.sum()
    token_costs[-1] += last_cost * shares.sum()
    _check_range(work, tokens, shares, token_costs, schedule, num)
    out = np.empty(len(work), np.int64)
    run_steps(
        program_of(schedule, num),
        np.array(work, np.int64).ravel(),
        np.array(tokens, np.int64).ravel(),
        slots,
        shares,
        token_costs,
        schedule.pp_size,
        schedule.coupling == "lockstep",
        out,
    )
    return out


def _check_range(
    work: np.ndarray,
    tokens: np.ndarray,
    shares: Int64,
    token_costs: Int64,
    schedule: Schedule,
    num: int,
) -> None:
    """No step takes longer than one in which every task takes as long as the longest."""
    if not len(work):
        return
    most_work, most_tokens = int(work.max()), int(tokens.max())
    longest = int(shares.max()) * most_work + int(token_costs.max()) * most_tokens
    turns = num * schedule.virtual_stages + schedule.pp_size - 1
    if turns * longest * sum(schedule.pass_times) >= LONGEST_STEP:
        raise ValueError(
            f"{num} micro-batches of workload up to {most_work} are too long for {schedule}: their "
            "time goes beyond 64 bits; use smaller stage_shares or a rounder backward_factor"
        )
