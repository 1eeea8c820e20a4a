"""Compiled search of `lookahead`: which step each long piece of a window runs in.

Short pieces are a fluid here, the filler: only how many of its tokens a step holds is decided
(`kernels_fluid`). `kernels_settle` makes micro-batches of pieces of what was found.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from packer.jit import kernel
from packer.packing.kernels_fluid import capacity, new_load, put, room_of, step_cost
from packer.permutation import mix

GAMMA = np.uint64(0x9E3779B97F4A7C15)
FIRST_POWER, LAST_POWER = 2, 6
"""Norms 2^2 .. 2^6 of a step's loads that the search goes through before it looks at its time."""
SOFT = 0.7
"""Share of the search under norms."""
HALVINGS = 6.0
"""How often the temperature halves on the way."""
CHECKS = 4096
"""How often temperature and price are set anew."""
DEAREST, CHEAPEST = 5.0, 0.02
"""Bounds of the price of a token's step, in the linear work of a token."""
BAND_PRICE = 8.0
"""Price of a token out of its band, likewise."""


class Window(NamedTuple):
    """What is searched; long pieces are numbered by falling length."""

    tokens: np.ndarray
    """int64 (long,)."""
    work: np.ndarray
    """float64 (long,)."""
    arrival: np.ndarray
    """Step of the window, may lie outside it, int64 (long,)."""
    source: np.ndarray
    """int64 (long,)."""
    step: np.ndarray
    """Where each runs, int64 (long,); changed in place."""
    filler: np.ndarray
    """Filler tokens that each step holds, int64 (steps,); changed in place."""
    carry: np.ndarray
    """Filler tokens that arrived before each step and run in it or later, int64 (steps + 1,)."""
    least_of_source: np.ndarray
    """Tokens of long pieces of each source that a step should hold, int64 (sources,)."""
    most_of_source: np.ndarray
    """Tokens of long pieces of each source that a step may hold, int64 (sources,)."""


@kernel
def without(members, count, piece, out):
    """A step's members less one; returns how many are left."""
    kept = 0
    for rank in range(count):
        if members[rank] != piece:
            out[kept] = members[rank]
            kept += 1
    return kept


@kernel
def insert(members, count, piece):
    """Add a piece to a step's members, which stay ascending."""
    rank = count
    while rank > 0 and members[rank - 1] > piece:
        members[rank] = members[rank - 1]
        rank -= 1
    members[rank] = piece
    return count + 1


@kernel
def random_word(state):
    """The next output of splitmix64, uint64."""
    state[0] += GAMMA
    return mix(state[0])


@kernel
def below(state, limit):
    """A random integer in [0, limit)."""
    return np.int64(random_word(state) >> np.uint64(1)) % limit


@kernel
def surprise(state):
    """About -log2 of a uniform number, by its leading zeros and a straight line between powers."""
    word = random_word(state) | np.uint64(1)
    zeros = 0.0
    while word < np.uint64(1 << 63):
        word <<= np.uint64(1)
        zeros += 1.0
    return zeros + 2.0 - np.float64(word >> np.uint64(11)) / 4503599627370496.0


@kernel
def late(window, piece, step):
    """Token-steps of displacement of a piece that runs in a step."""
    return window.tokens[piece] * abs(step - window.arrival[piece])


@kernel
def beyond(value, least, most):
    """How far a number is out of [least, most]."""
    return max(np.int64(0), least - value, value - most)


@kernel
def propose(window, bounds, state, steps):
    """A change to try: a piece, or -1; where it goes; what goes the other way, or -1.

    Returns (piece, other, from, to); to = -1 where there is nothing to try.
    """
    num_long = len(window.tokens)
    kind = below(state, 10) if num_long else 9
    if kind == 9:  # filler between neighbours
        step = below(state, steps)
        to = step + 2 * below(state, 2) - 1
        return -1, -1, step, to if to < steps else -1
    piece = below(state, num_long)
    step = window.step[piece]
    if kind < 4:  # to where one of like length is
        like = piece + below(state, 17) - 8
        other = -1
        if like < 0 or like >= num_long:
            return piece, -1, step, -1
        to = window.step[like]
    elif kind < 7:  # in exchange for one of like length
        other = piece + below(state, 33) - 16
        if other < 0 or other >= num_long:
            return piece, -1, step, -1
        to = window.step[other]
        if abs(step - window.arrival[other]) > bounds.max_displacement:
            to = -1
    else:  # near its arrival
        other = -1
        to = window.arrival[piece] + below(state, 9) - 4
    if to == step or to < 0 or to >= steps:
        return piece, -1, step, -1
    if abs(to - window.arrival[piece]) > bounds.max_displacement:
        return piece, -1, step, -1
    return piece, other, step, to


@kernel
def sources_beyond(window, held_of, piece, other, step, to):
    """How many more tokens are beyond sources' bounds after a move; may be negative."""
    more = np.int64(0)
    for turn in range(2):
        moved = piece if turn == 0 else other
        if moved >= 0:
            here, there = (step, to) if turn == 0 else (to, step)
            source, tokens = window.source[moved], window.tokens[moved]
            least, most = window.least_of_source[source], window.most_of_source[source]
            held, new = held_of[here, source], held_of[there, source]
            if turn == 1 and source == window.source[piece]:  # the first one moved already
                held += window.tokens[piece]
                new -= window.tokens[piece]
            more += beyond(held - tokens, least, most) - beyond(held, least, most)
            more += beyond(new + tokens, least, most) - beyond(new, least, most)
    return more


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
    members = np.empty((steps, most_long), np.int64)
    counts = np.zeros(steps, np.int64)
    held = np.zeros(steps, np.int64)  # tokens of long pieces
    held_of = np.zeros((steps, len(window.most_of_source)), np.int64)
    for piece in range(num_long):
        step = window.step[piece]
        if counts[step] == most_long:
            return False
        members[step, counts[step]] = piece
        counts[step] += 1
        held[step] += window.tokens[piece]
        held_of[step, window.source[piece]] += window.tokens[piece]
    here = new_load(bounds)
    there = new_load(bounds)
    outside = np.int64(0)  # tokens out of their bands
    for step in range(steps):
        if not put(members[step], counts[step], window.tokens, window.work, bounds, here):
            return False
        if room_of(here, bounds) < window.filler[step]:
            return False
        outside += beyond(held[step] + window.filler[step], bounds.least_tokens, bounds.most_tokens)
        for source in range(len(window.most_of_source)):
            outside += beyond(
                held_of[step, source], window.least_of_source[source], window.most_of_source[source]
            )
    displacement = np.int64(0)
    for piece in range(num_long):
        displacement += late(window, piece, window.step[piece])
    for step in range(steps + 1):
        displacement += abs(window.carry[step])

    cost = np.zeros(steps, np.float64)
    state = np.array([seed], np.uint64)
    price = 0.2 * bounds.token_work
    band_price = BAND_PRICE * bounds.token_work
    hottest = 0.01 * bounds.token_work * bounds.max_tokens * bounds.num
    temperature = hottest
    power = LAST_POWER + 1
    left_members = np.empty(num_long + 1, np.int64)
    new_members = np.empty(num_long + 2, np.int64)
    tries = np.empty(5, np.int64)
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
            price = max(CHEAPEST * bounds.token_work, min(price, DEAREST * bounds.token_work))
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
        piece, other, step, to = propose(window, bounds, state, steps)
        if to < 0:
            continue
        left = counts[step]
        new = counts[to]
        moved = np.int64(0)
        farther = np.int64(0)
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
        if new > most_long or left > most_long:
            continue
        if not put(left_members, left, window.tokens, window.work, bounds, here):
            continue
        if not put(new_members, new, window.tokens, window.work, bounds, there):
            continue
        # The two steps share their filler anew: as it was, making up for what moved, up to the
        # heaviest micro-batch of the one or of the other, or so that none crosses the border.
        both = window.filler[step] + window.filler[to]
        held_here = held[step] - moved
        held_there = held[to] + moved
        first, last = min(step, to), max(step, to)
        toward = 1 if to > step else -1
        tries[0] = window.filler[step]
        tries[1] = window.filler[step] + moved
        tries[2] = capacity(here, bounds)
        tries[3] = both - capacity(there, bounds)
        tries[4] = window.filler[step] + toward * window.carry[first + 1]
        most = min(both, room_of(here, bounds))
        least = max(0, both - room_of(there, bounds))
        if least > most:
            continue
        in_band = min(bounds.most_tokens - held_here, both + held_there - bounds.least_tokens)
        from_band = max(bounds.least_tokens - held_here, both + held_there - bounds.most_tokens)
        if max(least, from_band) <= min(most, in_band):
            least, most = max(least, from_band), min(most, in_band)
        more_outside = np.int64(0)
        if piece >= 0:
            more_outside = sources_beyond(window, held_of, piece, other, step, to)
        more_outside -= beyond(
            held[step] + window.filler[step], bounds.least_tokens, bounds.most_tokens
        ) + beyond(held[to] + window.filler[to], bounds.least_tokens, bounds.most_tokens)
        best = np.inf
        best_filler = np.int64(-1)
        best_here = best_there = 0.0
        best_farther = best_outside = np.int64(0)
        for number in range(5):
            filler = min(max(tries[number], least), most)
            tries[number] = filler
            if filler in tries[:number]:
                continue
            shift = toward * (window.filler[step] - filler)  # how the carries between them change
            way = farther
            for border in range(first + 1, last + 1):
                way += abs(window.carry[border] + shift) - abs(window.carry[border])
            out = (
                more_outside
                + beyond(held_here + filler, bounds.least_tokens, bounds.most_tokens)
                + beyond(held_there + both - filler, bounds.least_tokens, bounds.most_tokens)
            )
            cost_here = step_cost(here, bounds, filler, power)
            cost_there = step_cost(there, bounds, both - filler, power)
            total = cost_here + cost_there + price * way + band_price * out
            if total < best:
                best = total
                best_filler = filler
                best_here, best_there = cost_here, cost_there
                best_farther, best_outside = way, out
        worse = best - cost[step] - cost[to]
        if worse > 0.0 and worse > 0.35 * temperature * surprise(state):
            continue
        shift = toward * (window.filler[step] - best_filler)
        for border in range(first + 1, last + 1):
            window.carry[border] += shift
        window.filler[step] = best_filler
        window.filler[to] = both - best_filler
        displacement += best_farther
        outside += best_outside
        cost[step], cost[to] = best_here, best_there
        if piece >= 0:
            members[step, :left] = left_members[:left]
            members[to, :new] = new_members[:new]
            counts[step], counts[to] = left, new
            held[step], held[to] = held_here, held_there
            window.step[piece] = to
            held_of[step, window.source[piece]] -= window.tokens[piece]
            held_of[to, window.source[piece]] += window.tokens[piece]
            if other >= 0:
                window.step[other] = step
                held_of[to, window.source[other]] -= window.tokens[other]
                held_of[step, window.source[other]] += window.tokens[other]
    window.step[:] = found_step
    window.filler[:] = found_filler
    return found_cost < np.inf
