"""Compiled moves of `lookahead`'s search: what a window is, and which change to try next."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from packer.jit import kernel
from packer.permutation import mix

GAMMA = np.uint64(0x9E3779B97F4A7C15)


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
def random_word(random):
    """The next output of splitmix64, uint64."""
    random[0] += GAMMA
    return mix(random[0])


@kernel
def below(random, limit):
    """A random integer in [0, limit)."""
    return np.int64(random_word(random) >> np.uint64(1)) % limit


@kernel
def surprise(random):
    """About -log2 of a uniform number, by its leading zeros and a straight line between powers."""
    word = random_word(random) | np.uint64(1)
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
def propose(window, bounds, random, steps):
    """A change to try: a piece, or -1; where it goes; what goes the other way, or -1.

    Returns (piece, other, from, to); to = -1 where there is nothing to try.
    """
    num_long = len(window.tokens)
    kind = below(random, 10) if num_long else 9
    if kind == 9:  # filler between neighbours
        step = below(random, steps)
        to = step + 2 * below(random, 2) - 1
        return -1, -1, step, to if to < steps else -1
    piece = below(random, num_long)
    step = window.step[piece]
    if kind < 4:  # to where one of like length is
        like = piece + below(random, 17) - 8
        other = -1
        if like < 0 or like >= num_long:
            return piece, -1, step, -1
        to = window.step[like]
    elif kind < 7:  # in exchange for one of like length
        other = piece + below(random, 33) - 16
        if other < 0 or other >= num_long:
            return piece, -1, step, -1
        to = window.step[other]
        if abs(step - window.arrival[other]) > bounds.max_displacement:
            to = -1
    else:  # near its arrival
        other = -1
        to = window.arrival[piece] + below(random, 9) - 4
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
