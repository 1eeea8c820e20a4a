"""A window seen from afar: like pieces that arrive together as one, of as many fewer micro-batches.

A step of 256 micro-batches looks like one of 16; a move costs a sixteenth of one of single pieces
and places sixteen.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from packer.packing.search.fluid import Bounds, make_fit
from packer.packing.search.moves import Window
from packer.plan import Int64

FEW = 16
"""Micro-batches of a step that a search sees where it can take groups."""
LIKE = 32
"""Groups that are taken from pieces of like length, by arrival."""


def group_size(num_micro_batches: int) -> int:
    """Micro-batches that a search takes as one: as many as leave FEW or more."""
    return _divisor(num_micro_batches, num_micro_batches // FEW)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Grouped:
    """A window seen from afar."""

    window: Window
    bounds: Bounds
    group: int
    """Pieces of a group, and micro-batches taken as one."""
    group_of: Int64
    """The group of each long piece, (long,)."""


def grouped(window: Window, bounds: Bounds, group: int, arrived: Int64) -> Grouped:
    """A window whose long pieces are groups of like length that arrive together."""
    num_long = len(window.tokens)
    order = np.arange(num_long)
    for first in range(0, num_long, LIKE * group):
        like = order[first : first + LIKE * group]
        order[first : first + LIKE * group] = like[np.argsort(window.arrival[like], kind="stable")]
    group_of = np.empty(num_long, np.int64)
    group_of[order] = np.arange(num_long) // group
    count = np.bincount(group_of)

    def mean(values: np.ndarray) -> np.ndarray:
        return np.bincount(group_of, weights=values.astype(np.float64)) / count

    tokens = mean(window.tokens)
    longest = np.argsort(-tokens, kind="stable")
    number = np.empty_like(longest)
    number[longest] = np.arange(len(longest))
    few = bounds.num // group
    each = bounds.num // bounds.dp_size
    dp_size = few if bounds.dp_size == bounds.num else _divisor(few, bounds.dp_size // group)
    fewer = bounds._replace(
        num=few,
        budget=bounds.budget / group,
        least_tokens=bounds.least_tokens // group,
        most_tokens=bounds.most_tokens // group,
        dp_size=dp_size,
        bubble=bounds.bubble * (few // dp_size) / each,
    )
    seen = window._replace(
        tokens=tokens[longest].astype(np.int64),
        work=mean(window.work)[longest],
        arrival=np.rint(mean(window.arrival)[longest]).astype(np.int64),
        source=window.source[order[::group][longest]],
        step=np.rint(mean(window.step)[longest]).astype(np.int64),
        least_of_source=window.least_of_source // group,
        most_of_source=window.most_of_source // group,
    )
    return Grouped(
        window=_fitting(seen, fewer, window.filler // group, arrived // group),
        bounds=fewer,
        group=group,
        group_of=number[group_of],
    )


def spread_out(coarse: Grouped, window: Window, bounds: Bounds, arrived: Int64) -> Window:
    """The window with every piece in the step of its group, and the filler to go with that."""
    far = bounds.max_displacement
    step = coarse.window.step[coarse.group_of]
    step = np.clip(step, window.arrival - far, window.arrival + far)
    step = np.clip(step, 0, len(window.filler) - 1)
    filler = coarse.window.filler * coarse.group
    filler[-1] += int(window.filler.sum()) - int(filler.sum())
    return _fitting(window._replace(step=step), bounds, filler, arrived)


def _fitting(window: Window, bounds: Bounds, filler: Int64, arrived: Int64) -> Window:
    """The window with long pieces where they have room, and filler close to what is given."""
    steps = len(filler)
    step = window.step.copy()
    make_fit(step, window.arrival, window.tokens, window.work, bounds, steps)
    room = np.maximum(0, bounds.num * bounds.max_tokens - by_step(step, window.tokens, steps))
    fitted = np.clip(filler, 0, room)
    over = int(filler.sum()) - int(fitted.sum())
    for number in np.argsort(fitted - room, kind="stable"):  # the most room first
        change = max(min(over, int(room[number] - fitted[number])), -int(fitted[number]))
        fitted[number] += change
        over -= change
    return window._replace(step=step, filler=fitted, carry=carry_of(arrived, fitted))


def by_step(step: Int64, tokens: Int64, num_steps: int) -> Int64:
    """Tokens by step, (steps,)."""
    return np.bincount(step, weights=tokens.astype(np.float64), minlength=num_steps).astype(
        np.int64
    )


def carry_of(arrived: Int64, held: Int64) -> Int64:
    """Tokens that arrived before each step and run in it or later, (steps + 1,)."""
    return np.concatenate([[0], np.cumsum(arrived - held)]).astype(np.int64)


def _divisor(number: int, most: int) -> int:
    """The largest divisor that is at most `most`; 1 where that is none."""
    return next((part for part in range(most, 1, -1) if number % part == 0), 1)
