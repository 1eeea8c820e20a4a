"""Compiled search of `lookahead`: which step each long piece of a window runs in.

Short pieces are a fluid here, the filler: only how many of its tokens a step holds is decided
(`fluid`). `settling` makes micro-batches of pieces of what was found.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from packer.jit import kernel
from packer.packing.search.fluid import capacity, new_load, put, room_of, step_cost
from packer.packing.search.moves import (
    beyond,
    insert,
    late,
    propose,
    sources_beyond,
    surprise,
    without,
)

FIRST_POWER, LAST_POWER = 2, 6
"""Norms 2^2 .. 2^6 of a step's loads that the search goes through before it looks at its time."""
SOFT = 0.7
"""Share of the search under norms."""
HALVINGS = 6.0
"""How often the temperature halves on the way."""
CHECKS = 4096
"""How often temperature and price are set anew."""
CHEAPEST = 0.02
"""Least price of a token's step, in the linear work of a token."""
BAND_PRICE = 8.0
"""Price of a token out of its band, likewise."""
TRIES = 5
"""Ways in which two steps may share their filler."""


class State(NamedTuple):
    """Where the search is, beside the window itself."""

    members: np.ndarray
    """Long pieces of each step, ascending in its first `counts` places, int64 (steps, most)."""
    counts: np.ndarray
    """int64 (steps,)."""
    held: np.ndarray
    """Tokens of long pieces of each step, int64 (steps,)."""
    held_of: np.ndarray
    """The same of each source, int64 (steps, sources)."""
    cost: np.ndarray
    """Of each step, float64 (steps,)."""


@kernel
def begin(window, bounds, state, load):
    """Fill the state from the window.

    Returns whether everything has room, tokens out of their bands, and token-steps of displacement.
    """
    steps = len(window.filler)
    outside = displacement = np.int64(0)
    for piece in range(len(window.tokens)):
        step = window.step[piece]
        if state.counts[step] == state.members.shape[1]:
            return False, outside, displacement
        state.members[step, state.counts[step]] = piece
        state.counts[step] += 1
        state.held[step] += window.tokens[piece]
        state.held_of[step, window.source[piece]] += window.tokens[piece]
        displacement += late(window, piece, step)
    for step in range(steps):
        count = state.counts[step]
        if not put(state.members[step], count, window.tokens, window.work, bounds, load):
            return False, outside, displacement
        if room_of(load, bounds) < window.filler[step]:
            return False, outside, displacement
        held = state.held[step] + window.filler[step]
        outside += beyond(held, bounds.least_tokens, bounds.most_tokens)
        for source in range(len(window.most_of_source)):
            least, most = window.least_of_source[source], window.most_of_source[source]
            outside += beyond(state.held_of[step, source], least, most)
    for step in range(steps + 1):
        displacement += abs(window.carry[step])
    return True, outside, displacement


@kernel
def carried(window, step, to, change):
    """How much more filler crosses the borders between two steps, by steps, if `step` gives some.

    `change` tokens go from `step` to `to`; may be negative.
    """
    toward = 1 if to > step else -1
    more = np.int64(0)
    for border in range(min(step, to) + 1, max(step, to) + 1):
        more += abs(window.carry[border] + toward * change) - abs(window.carry[border])
    return more


@kernel
def share_filler(window, bounds, state, here, there, step, to, moved, price, power, tries):
    """How two steps that exchange long pieces best share their filler.

    As it was, making up for what moved, up to the heaviest micro-batch of the one or of the other,
    or so that none crosses the border; within their bands where that can be.

    Args:
        window: as it is.
        bounds: of the search.
        state: as it is.
        here: load of `step` after the exchange.
        there: load of `to` after it.
        step: a step.
        to: the other.
        moved: tokens in long pieces that go from the one to the other.
        price: of a token-step of displacement.
        power: of the steps' cost.
        tries: scratch, int64 (TRIES,).

    Returns:
        What it costs, prices included; the filler of `step`; both steps' costs; token-steps of
        displacement more, of the filler; tokens out of the bands of both.
    """
    filler_here, filler_there = window.filler[step], window.filler[to]
    both = filler_here + filler_there
    held_here, held_there = state.held[step] - moved, state.held[to] + moved
    toward = 1 if to > step else -1
    tries[0] = filler_here
    tries[1] = filler_here + moved
    tries[2] = capacity(here, bounds)
    tries[3] = both - capacity(there, bounds)
    tries[4] = filler_here + toward * window.carry[min(step, to) + 1]
    most = min(both, room_of(here, bounds))
    least = max(0, both - room_of(there, bounds))
    in_band = min(bounds.most_tokens - held_here, both + held_there - bounds.least_tokens)
    from_band = max(bounds.least_tokens - held_here, both + held_there - bounds.most_tokens)
    if max(least, from_band) <= min(most, in_band):
        least, most = max(least, from_band), min(most, in_band)
    best = np.inf
    best_filler = np.int64(-1)
    best_here = best_there = 0.0
    best_farther = best_outside = np.int64(0)
    for number in range(TRIES if least <= most else 0):
        filler = min(max(tries[number], least), most)
        tries[number] = filler
        if filler in tries[:number]:
            continue
        farther = carried(window, step, to, filler_here - filler)
        outside = beyond(held_here + filler, bounds.least_tokens, bounds.most_tokens)
        outside += beyond(held_there + both - filler, bounds.least_tokens, bounds.most_tokens)
        cost_here = step_cost(here, bounds, filler, power)
        cost_there = step_cost(there, bounds, both - filler, power)
        total = cost_here + cost_there + price * farther
        total += BAND_PRICE * bounds.token_work * outside
        if total < best:
            best = total
            best_filler = filler
            best_here, best_there = cost_here, cost_there
            best_farther, best_outside = farther, outside
    return best, best_filler, best_here, best_there, best_farther, best_outside


@kernel
def move_piece(window, state, piece, step, to):
    """Book a piece in another step; its steps' members are set elsewhere."""
    tokens, source = window.tokens[piece], window.source[piece]
    window.step[piece] = to
    state.held[step] -= tokens
    state.held[to] += tokens
    state.held_of[step, source] -= tokens
    state.held_of[to, source] += tokens


@kernel
def search(window, bounds, num_moves, start, seed):
    """Improve a window by simulated annealing; False where nothing was found.

    The least sum of `step_cost` whose displacement stays in the budget: displacement is priced, and
    the price rises while there is too much of it and falls while there is budget left. Tokens out
    of a band are priced too, and of what was found the one with the fewest counts. Softer costs
    come first, times last (`step_cost`); the temperature halves HALVINGS times. `start` is how much
    of that is over already, in [0, 1).
    """
    steps = len(window.filler)
    num_long = len(window.tokens)
    most_long = num_long  # that fit into a step; the last piece is the shortest
    if num_long:
        most_long = min(most_long, bounds.num * (bounds.max_tokens // window.tokens[-1]))
    state = State(
        np.empty((steps, most_long), np.int64),
        np.zeros(steps, np.int64),
        np.zeros(steps, np.int64),
        np.zeros((steps, len(window.most_of_source)), np.int64),
        np.zeros(steps, np.float64),
    )
    members, counts, cost = state.members, state.counts, state.cost
    here = new_load(bounds)
    there = new_load(bounds)
    fits, outside, displacement = begin(window, bounds, state, here)
    if not fits:
        return False
    random = np.array([seed], np.uint64)
    price = 0.2 * bounds.token_work
    hottest = 0.01 * bounds.token_work * bounds.max_tokens * bounds.num
    temperature = hottest
    power = LAST_POWER + 1
    left_members = np.empty(num_long + 1, np.int64)
    new_members = np.empty(num_long + 2, np.int64)
    tries = np.empty(TRIES, np.int64)
    every = max(1, num_moves // CHECKS)
    found_cost = np.inf
    found_outside = np.int64(9223372036854775807)
    found_step = window.step.copy()
    found_filler = window.filler.copy()
    for move in range(num_moves):
        if move % every == 0:
            done = start + (1.0 - start) * move / num_moves
            halvings = np.int64(HALVINGS * done)
            temperature = hottest / (1 << halvings) * (1.0 - 0.5 * (HALVINGS * done - halvings))
            price *= 1.02 if displacement > bounds.budget else 0.985
            price = max(CHEAPEST * bounds.token_work, min(price, bounds.dearest))
            soft = FIRST_POWER + np.int64(done / SOFT * (LAST_POWER - FIRST_POWER + 1))
            wanted = soft if soft <= LAST_POWER else -1
            if wanted != power:
                power = wanted
                for step in range(steps):
                    put(members[step], counts[step], window.tokens, window.work, bounds, here)
                    cost[step] = step_cost(here, bounds, window.filler[step], power)
            if power < 0 and displacement <= bounds.budget and outside <= found_outside:
                total = cost.sum()
                if outside < found_outside or total < found_cost:
                    found_cost = total
                    found_outside = outside
                    found_step[:] = window.step
                    found_filler[:] = window.filler
        piece, other, step, to = propose(window, bounds, random, steps)
        if to < 0:
            continue
        left = counts[step]
        new = counts[to]
        moved = farther = more_outside = np.int64(0)
        left_members[:left] = members[step, :left]
        new_members[:new] = members[to, :new]
        if piece >= 0:
            left = without(members[step], left, piece, left_members)
            moved = window.tokens[piece]
            farther = late(window, piece, to) - late(window, piece, step)
            if other >= 0:
                new = without(members[to], new, other, new_members)
                left = insert(left_members, left, other)
                moved -= window.tokens[other]
                farther += late(window, other, step) - late(window, other, to)
            new = insert(new_members, new, piece)
            more_outside = sources_beyond(window, state.held_of, piece, other, step, to)
        if new > most_long or left > most_long:
            continue
        if not put(left_members, left, window.tokens, window.work, bounds, here):
            continue
        if not put(new_members, new, window.tokens, window.work, bounds, there):
            continue
        total, filler, cost_here, cost_there, of_filler, out = share_filler(
            window, bounds, state, here, there, step, to, moved, price, power, tries
        )
        if filler < 0:
            continue
        for number in (step, to):
            held = state.held[number] + window.filler[number]
            more_outside -= beyond(held, bounds.least_tokens, bounds.most_tokens)
        worse = total - cost[step] - cost[to] + price * farther
        worse += BAND_PRICE * bounds.token_work * more_outside
        if worse > 0.0 and worse > 0.35 * temperature * surprise(random):
            continue
        change = window.filler[step] - filler
        for border in range(min(step, to) + 1, max(step, to) + 1):
            window.carry[border] += change if to > step else -change
        window.filler[step] = filler
        window.filler[to] += change
        displacement += farther + of_filler
        outside += more_outside + out
        cost[step], cost[to] = cost_here, cost_there
        if piece >= 0:
            members[step, :left] = left_members[:left]
            members[to, :new] = new_members[:new]
            counts[step], counts[to] = left, new
            move_piece(window, state, piece, step, to)
            if other >= 0:
                move_piece(window, state, other, to, step)
    window.step[:] = found_step
    window.filler[:] = found_filler
    return found_cost < np.inf
