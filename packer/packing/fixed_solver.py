"""`fixed_solver`: fixed length by a solver, equation 1 of WLB-LLM (arXiv 2503.17924).

As `packer.packing.fixed`, but the pieces of a window are dealt out by a mixed-integer program
(`packer.packing.milp`, HiGHS, extra `solver`). It starts from the better of the two greedy orders,
and a window in which it finds nothing better stays as the greedy made it: the sum of the steps'
largest attention work over the tokens placed is never larger.

To simulate only: a time limit gives another plan on another machine, or on another day.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

import numpy as np

from packer.packing import kernels, kernels_fixed
from packer.packing.backlog import Backlog, Filled, Solved
from packer.packing.config import PackingConfig
from packer.packing.fixed import Windows, pack_windows, with_borders
from packer.packing.kernels_order import by_work
from packer.packing.milp import load_highs, solve
from packer.plan import Int64, Steps
from packer.workload import Workload

WHOLE = 1 - 1e-6
"""A share of a piece that counts as all of it."""


def fill(backlog: Backlog, config: PackingConfig, workload: Workload, final: bool) -> Filled:
    """Make the whole windows that a backlog allows; see `packer.packing.backlog.Policy`.

    Raises:
        SolverMissing: HiGHS is not installed.
    """
    load_highs()
    backlog = with_borders(backlog, config.context_length)
    made: list[Steps] = []
    solved: list[Solved] = []
    while True:
        window, problem = _greedy(backlog, config, workload, final)
        if problem is None:
            return Filled(
                steps=Steps.concatenate(made) if made else None,
                backlog=window.filled(backlog, config, workload).backlog,
                stop=window.stop,
                solved=tuple(solved),
            )
        started = time.monotonic()
        better, gap, at_limit = _improved(problem, config)
        seconds = time.monotonic() - started
        if better is not None:
            window = _with(window, problem, better, config, workload)
        solved.append(Solved(seconds=seconds, gap=gap, at_limit=at_limit))
        filled = window.filled(backlog, config, workload)
        assert filled.steps is not None
        made.append(filled.steps)
        backlog = filled.backlog


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Problem:
    """A window's candidates, ascending by position, and where the greedy put them."""

    index: Int64
    """In the backlog, (candidates,)."""
    tokens: Int64
    arrival: Int64
    """Steps after the window's first, (candidates,)."""
    place: Int64
    """Bin of each, step-major, -1 for none, (candidates,)."""
    num_steps: int
    first_step: int

    def cost(self, place: Int64, num_micro_batches: int) -> tuple[int, int]:
        """The sum of the steps' largest attention work, and the tokens placed."""
        held = place >= 0
        work = _sums(place[held], self.tokens[held] ** 2, self.num_steps * num_micro_batches)
        heaviest = work.reshape(-1, num_micro_batches).max(axis=1)
        return int(heaviest.sum()), int(self.tokens[held].sum())


def _greedy(
    backlog: Backlog, config: PackingConfig, workload: Workload, final: bool
) -> tuple[Windows, _Problem | None]:
    """The next window by the better order; no problem where there is no window."""
    found: list[tuple[Windows, _Problem]] = []
    for longest_first in (True, False):
        window = pack_windows(
            backlog, config, workload, final=final, longest_first=longest_first, max_steps=1
        )
        if len(window.row_work):
            found.append((window, _problem(window, backlog, config)))
    if not found:
        return window, None
    costs = [problem.cost(problem.place, config.num_micro_batches) for _, problem in found]
    best = min(range(len(found)), key=lambda number: costs[number][0] / costs[number][1])
    return found[best]


def _problem(window: Windows, backlog: Backlog, config: PackingConfig) -> _Problem:
    left = window.hand[: window.state[kernels.HAND]]
    index = np.union1d(np.flatnonzero(window.row >= 0), left)
    pieces = backlog.pieces.take(index)
    return _Problem(
        index=index,
        tokens=pieces.tokens,
        arrival=pieces.position // config.intake_tokens - backlog.step,
        place=window.row[index],
        num_steps=len(window.row_work) // config.num_micro_batches,
        first_step=backlog.step,
    )


def _improved(problem: _Problem, config: PackingConfig) -> tuple[Int64 | None, float, bool]:
    """Better bins of the candidates, if any; the relative gap of what is used; whether time ended.

    The gap is between the steps' largest attention work and the most that is known of what it must
    be at least, for the pieces that the greedy placed.
    """
    num = config.num_micro_batches
    cost, placed = problem.cost(problem.place, num)
    held = np.flatnonzero(problem.place >= 0)
    held = held[np.argsort(-problem.tokens[held], kind="stable")]
    bound = _simple_bound(problem.tokens[held], config)
    if cost - bound <= config.solver_gap * cost:
        return None, max(0.0, (cost - bound) / cost), False
    solution = solve(
        problem.tokens[held],
        _renumbered(problem.place[held], problem.tokens[held], num),
        num_micro_batches=num,
        num_steps=problem.num_steps,
        context_length=config.context_length,
        max_pieces=config.max_pieces,
        seconds=config.solver_seconds,
        gap=config.solver_gap,
    )
    bound = max(bound, solution.bound)
    place = np.full_like(problem.place, -1)
    whole = solution.shares.max(axis=1) >= WHOLE
    place[held[whole]] = solution.shares.argmax(axis=1)[whole]
    better = _repaired(problem, place, config)
    if better is not None:
        new_cost, new_placed = problem.cost(better, num)
        if new_cost * placed < cost * new_placed:
            return better, max(0.0, (new_cost - bound) / new_cost), solution.at_limit
    return None, max(0.0, (cost - bound) / cost), solution.at_limit


def _simple_bound(tokens: Int64, config: PackingConfig) -> float:
    """What the steps' largest attention work is at least; `tokens` falling.

    The mean; and since pieces over half of S have a bin each, every N-th of those is the longest
    that some step has.
    """
    over_half = tokens[2 * tokens > config.context_length]
    mean = float((tokens * tokens).sum()) / config.num_micro_batches
    longest = tokens[: 1 if not len(over_half) else 0]
    return max(mean, float((np.r_[over_half[:: config.num_micro_batches], longest] ** 2).sum()))


def _renumbered(place: Int64, tokens: Int64, num_micro_batches: int) -> Int64:
    """Bins such that the longest piece, the first, is in bin 0 and later steps' maxima fall."""
    bins = int(place.max()) // num_micro_batches * num_micro_batches + num_micro_batches
    work = _sums(place, tokens * tokens, bins)
    heaviest = work.reshape(-1, num_micro_batches).max(axis=1)
    heaviest[place[0] // num_micro_batches] = np.iinfo(np.int64).max
    work[place[0]] = np.iinfo(np.int64).max
    step = np.argsort(np.argsort(-heaviest, kind="stable"), kind="stable")
    inside = np.argsort(np.argsort(-work.reshape(-1, num_micro_batches), axis=1), axis=1).ravel()
    return step[place // num_micro_batches] * num_micro_batches + inside[place]


def _repaired(problem: _Problem, place: Int64, config: PackingConfig) -> Int64 | None:
    """Deal out what the program split or left, the longest first; None if a bin stays empty.

    Each goes where it raises its step's heaviest bin least, if that has room.
    """
    num, tokens = config.num_micro_batches, problem.tokens
    bins = problem.num_steps * num
    place = place.copy()
    most = config.max_pieces or len(tokens)
    by_length = np.argsort(-tokens, kind="stable")
    room = np.full(bins, config.context_length)
    count, work = np.zeros(bins, np.int64), np.zeros(bins, np.int64)
    for number in by_length[place[by_length] >= 0].tolist():
        at = place[number]
        if room[at] < tokens[number] or count[at] == most:  # the solver's tolerance
            place[number] = -1
            continue
        room[at] -= tokens[number]
        count[at] += 1
        work[at] += tokens[number] ** 2
    heaviest = np.repeat(work.reshape(-1, num).max(axis=1), num)
    for number in by_length[place[by_length] < 0].tolist():
        fits = (room >= tokens[number]) & (count < most)
        if not fits.any():
            continue
        slack = np.where(fits, heaviest - work, np.iinfo(np.int64).min)
        at = int(slack.argmax())
        place[number] = at
        room[at] -= tokens[number]
        count[at] += 1
        work[at] += tokens[number] ** 2
        step = slice(at // num * num, at // num * num + num)
        heaviest[step] = np.maximum(heaviest[step], work[at])
    return place if count.min() > 0 else None


def _with(
    window: Windows, problem: _Problem, place: Int64, config: PackingConfig, workload: Workload
) -> Windows:
    """The window with other bins; as it was where that breaks the displacement bound."""
    num, bins = config.num_micro_batches, problem.num_steps * config.num_micro_batches
    held = place >= 0
    work = _sums(place[held], workload.of(problem.tokens[held]), bins)
    order = np.arange(len(place))
    first = kernels.first_pieces(order, place, bins)
    rank = np.concatenate(
        [by_work(work[at : at + num], first[at : at + num]) for at in range(0, bins, num)]
    )
    step = kernels_fixed.steps_by_arrival(
        problem.tokens, problem.arrival, order, place, np.arange(bins) // num, problem.num_steps
    )
    new_row = np.repeat(step, num) * num + rank
    runs_in = new_row[place[held]] // num
    if np.abs(runs_in - problem.arrival[held]).max() > config.max_displacement:
        return window
    row, hand, state = np.full_like(window.row, -1), window.hand.copy(), window.state.copy()
    row[problem.index[held]] = new_row[place[held]]
    row_work = np.empty_like(window.row_work)
    row_work[new_row] = work
    left = problem.index[~held]
    hand[: len(left)] = left
    old = problem.place >= 0
    more_tokens = int(problem.tokens[held].sum() - problem.tokens[old].sum())
    state[kernels.HAND] = len(left)
    state[kernels.HAND_TOKENS] = problem.tokens[~held].sum()
    state[kernels.LEFT] -= np.count_nonzero(held) - np.count_nonzero(old)
    state[kernels.LEFT_TOKENS] -= more_tokens
    state[kernels.WINDOW_TOKENS] += more_tokens if state[kernels.WINDOW_STEPS] else 0
    return replace(window, row=row, row_work=row_work, hand=hand, state=state)


def _sums(place: Int64, values: Int64, bins: int) -> Int64:
    """The sum over each bin, (bins,)."""
    sums = np.zeros(bins, np.int64)
    np.add.at(sums, place, values)
    return sums
