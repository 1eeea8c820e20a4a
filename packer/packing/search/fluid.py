"""Compiled cost of a step whose long pieces are known and whose short ones are a fluid.

The long pieces go, longest first, to the micro-batch of least work with room; the filler, so many
tokens of short pieces, then rises like water over the micro-batches, up to `max_tokens` in each.
What a step costs is its time on the pipeline's clock, in the unit of its work: even micro-batches
cost what they weigh. A rank's time is the sum of its micro-batches and `bubble` times its heaviest
one (a flow shop whose stages take the same time); with one micro-batch a rank it is the heaviest
of all times their number, the objective "max".

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
    dearest: float
    """Bound of the price of a token-step of displacement, in work."""
    token_work: float
    """Linear work of a token."""
    least_tokens: int
    """Of a step, where there is a band; else 0."""
    most_tokens: int
    """Of a step, where there is a band; else what fits."""
    dp_size: int
    """Ranks that share a step, a divisor of `num`; `num` for the objective "max"."""
    bubble: float
    """How often a rank's heaviest micro-batch is waited for beyond its own turn."""
    lockstep: bool
    """Whether ranks wait for one another at every micro-batch."""


class Load(NamedTuple):
    """A step's micro-batches."""

    work: np.ndarray
    """Without the filler, float64 (num,)."""
    tokens: np.ndarray
    """Without the filler, int64 (num,)."""
    filled: np.ndarray
    """Scratch: work with the filler, float64 (num,)."""


@kernel
def new_load(bounds):
    """Scratch for one step's micro-batches."""
    return Load(
        np.zeros(bounds.num, np.float64),
        np.zeros(bounds.num, np.int64),
        np.zeros(bounds.num, np.float64),
    )


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
def make_fit(step, arrival, tokens, work, bounds, num_steps):
    """Move long pieces to the nearest steps whose micro-batches have room for them.

    Pieces are by falling length, as `put` takes them; `step` is changed in place. False where one
    has room in no step within its displacement bound.
    """
    held = np.zeros((num_steps, bounds.num), np.int64)
    load = np.zeros((num_steps, bounds.num), np.float64)
    count = np.zeros(num_steps, np.int64)
    for piece in range(len(tokens)):
        wanted = step[piece]
        best = -1
        for away in range(2 * num_steps):
            number = wanted + (away + 1) // 2 * (1 - 2 * (away % 2))
            if number < 0 or number >= num_steps:
                continue
            if abs(number - arrival[piece]) > bounds.max_displacement:
                continue
            best = count[number]
            if best >= bounds.num:
                best = -1
                for j in range(bounds.num):
                    if held[number, j] + tokens[piece] <= bounds.max_tokens and (
                        best < 0 or load[number, j] < load[number, best]
                    ):
                        best = j
            if best >= 0:
                step[piece] = number
                held[number, best] += tokens[piece]
                load[number, best] += work[piece]
                count[number] += 1
                break
        if best < 0:
            return False
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
    """The level of so much filler, where it is at most `high`, to a part in 2^12 of the filler.

    Newton's method from above; where a full micro-batch misleads it, the middle of what is left.
    """
    low = load.work[0]
    for j in range(bounds.num):
        low = min(low, load.work[j])
    level = high
    for _ in range(40):
        held, rising = filled_to(load, bounds, level)
        if abs(held - filler) * 4096.0 <= filler:
            break
        if held < filler:
            low = level
        else:
            high = level
        level += (filler - held) * bounds.filler_rate / max(rising, 1)
        if not low < level < high:
            level = 0.5 * (low + high)
    return level


@kernel
def pour(load, bounds, level):
    """Set `filled` to what each micro-batch weighs at a level."""
    for j in range(bounds.num):
        room = np.float64(bounds.max_tokens - load.tokens[j])
        load.filled[j] = max(load.work[j], min(level, load.work[j] + bounds.filler_rate * room))


@kernel
def norm(filled, most, power):
    """The 2^power-norm of loads, scaled so that it is `most` where all weigh that."""
    total = 0.0
    for work in filled:
        share = work / most
        for _ in range(power):
            share *= share
        total += share
    mean = total / len(filled)
    for _ in range(power):
        mean = np.sqrt(mean)
    return most * mean


@kernel
def sort_falling(values):
    """Sort in place; quick where they are nearly sorted."""
    for place in range(1, len(values)):
        value = values[place]
        before = place
        while before > 0 and values[before - 1] < value:
            values[before] = values[before - 1]
            before -= 1
        values[before] = value


@kernel
def step_time(falling, bounds):
    """Time of a step's slowest rank; `falling` is the work of its slots.

    Ranks are dealt slots as `packer.orders.slot_of` says.
    """
    dp_size = bounds.dp_size
    each = bounds.num // dp_size
    if bounds.lockstep:
        total = bounds.bubble * falling[0]
        for index in range(each):
            total += falling[index * dp_size]
        return total
    slowest = 0.0
    for rank in range(dp_size):
        total = bounds.bubble * falling[rank]
        for index in range(each):
            place = rank if index % 2 == 0 else dp_size - 1 - rank
            total += falling[index * dp_size + place]
        slowest = max(slowest, total)
    return slowest


@kernel
def step_cost(load, bounds, filler, power):
    """The time of a step, in the unit of its work.

    With `power` p >= 0 a softer one: the 2^p-norm of the loads times their number. It falls already
    while heavy micro-batches gather in one step, long before the other step has lost its last one.
    """
    most = heaviest(load, bounds)
    held, _ = filled_to(load, bounds, most)
    of_all = power < 0 and bounds.dp_size == bounds.num
    if held < filler:
        level = level_above(load, bounds, filler, most)
    elif of_all:
        return most * bounds.num
    else:
        level = level_below(load, bounds, filler, most)
    if of_all:
        return level * bounds.num
    pour(load, bounds, level)
    most = max(most, level)
    if power >= 0:
        return norm(load.filled, most, power) * bounds.num if most > 0.0 else 0.0
    sort_falling(load.filled)
    each = bounds.num // bounds.dp_size
    return step_time(load.filled, bounds) * bounds.num / (each + bounds.bubble)


@kernel
def capacity(load, bounds):
    """Filler tokens that raise no maximum."""
    held, _ = filled_to(load, bounds, heaviest(load, bounds))
    return np.int64(held)
