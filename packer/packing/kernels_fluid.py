"""Compiled cost of a step whose long pieces are known and whose short ones are a fluid.

The long pieces go, longest first, to the micro-batch of least work with room; the filler, so many
tokens of short pieces, then rises like water over the micro-batches, up to `max_tokens` in each.

All numbers are integers or float64 under + - * / and square roots, which IEEE 754 rounds alike
everywhere, so that plans do not depend on the machine.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from packer.jit import kernel


class Bounds(NamedTuple):
    """What a window is searched under."""

    num: int
    max_tokens: int
    max_displacement: int
    filler_rate: float
    """Work of a filler token."""
    budget: float
    """Tokens times steps of displacement."""
    token_work: float
    """Linear work of a token."""


class Load(NamedTuple):
    """A step's micro-batches without the filler: float64 and int64 (num,)."""

    work: np.ndarray
    tokens: np.ndarray


@kernel
def new_load(bounds):
    """Scratch for one step's micro-batches."""
    return Load(np.zeros(bounds.num, np.float64), np.zeros(bounds.num, np.int64))


@kernel
def put(members, count, tokens, work, bounds, load):
    """Put a step's long pieces into its micro-batches; False where one has no room.

    `members` are the first `count` of them, longest first; `tokens` and `work` are of each piece.
    """
    load.work[:] = 0.0
    load.tokens[:] = 0
    for rank in range(count):
        piece = members[rank]
        best = rank
        if rank >= bounds.num:
            best = -1
            for j in range(bounds.num):
                if load.tokens[j] + tokens[piece] <= bounds.max_tokens and (
                    best < 0 or load.work[j] < load.work[best]
                ):
                    best = j
            if best < 0:
                return False
        load.work[best] += work[piece]
        load.tokens[best] += tokens[piece]
    return True


@kernel
def room_of(load, bounds):
    """Filler tokens that fit into a step."""
    room = np.int64(0)
    for j in range(bounds.num):
        room += bounds.max_tokens - load.tokens[j]
    return room


@kernel
def filled_to(load, bounds, level):
    """Filler tokens of a step where it stands at `level`, and how many micro-batches still rise."""
    filler = 0.0
    rising = 0
    for j in range(bounds.num):
        room = np.float64(bounds.max_tokens - load.tokens[j])
        tokens = (level - load.work[j]) / bounds.filler_rate
        if tokens >= 0.0 and tokens < room:
            rising += 1
        filler += min(max(tokens, 0.0), room)
    return filler, rising


@kernel
def heaviest(load, bounds):
    """The work of the heaviest micro-batch without filler."""
    most = 0.0
    for j in range(bounds.num):
        most = max(most, load.work[j])
    return most


@kernel
def level_above(load, bounds, filler, level):
    """The level of so much filler, where it is above `level` and that above every load.

    Newton's method: from there on the filler grows ever more slowly with the level, so it comes
    from below and ends at the exact level.
    """
    for _ in range(bounds.num + 1):
        held, rising = filled_to(load, bounds, level)
        if held >= filler or rising == 0:
            break
        level += (filler - held) * bounds.filler_rate / rising
    return level


@kernel
def level_below(load, bounds, filler, high):
    """The level of so much filler, where it is at most `high`, to a part in 2^14."""
    low = load.work[0]
    for j in range(bounds.num):
        low = min(low, load.work[j])
    for _ in range(14):
        level = 0.5 * (low + high)
        held, _ = filled_to(load, bounds, level)
        if held < filler:
            low = level
        else:
            high = level
    return high


@kernel
def step_cost(load, bounds, filler, power):
    """The work of a step's heaviest micro-batch times their number.

    With `power` p >= 0 a softer one: the 2^p-norm of the loads in place of their maximum, scaled so
    that even loads cost the same. It falls already while heavy micro-batches gather in one step,
    long before the other step has lost its last one.
    """
    most = heaviest(load, bounds)
    held, _ = filled_to(load, bounds, most)
    if held < filler:
        level = level_above(load, bounds, filler, most)
    elif power < 0:
        return most * bounds.num
    else:
        level = level_below(load, bounds, filler, most)
    if power < 0:
        return level * bounds.num
    most = max(most, level)
    if most <= 0.0:
        return 0.0
    total = 0.0
    for j in range(bounds.num):
        room = np.float64(bounds.max_tokens - load.tokens[j])
        reached = max(load.work[j], min(level, load.work[j] + bounds.filler_rate * room))
        share = reached / most
        for _ in range(power):
            share *= share
        total += share
    mean = total / bounds.num
    for _ in range(power):
        mean = np.sqrt(mean)
    return most * mean * bounds.num


@kernel
def capacity(load, bounds):
    """Filler tokens that raise no maximum."""
    held, _ = filled_to(load, bounds, heaviest(load, bounds))
    return np.int64(held)
