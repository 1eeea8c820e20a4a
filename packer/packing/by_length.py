"""`ffd` and `bfd`: first- and best-fit-decreasing by length, as other packers fill sequences.

For comparison only. A window is as many pieces as fill the micro-batches of `global_batches` steps
to S_max; the longest first, each goes into the first bin that has room (`ffd`) or the fullest that
has (`bfd`), and where none has, into a new one. Bins fill up well and nothing is balanced. They
become steps N at a time in the order in which they were opened; those left over, fewer than N, are
packed again with the next window, so at the stream's end their pieces are the tail.

A step holds nearly N x S_max tokens, so its intake should be that; `packer.simulate` sets it.
Displacement has no bound: a short piece may come last in window after window, and where bins do not
fill up, steps fall behind arrivals. `packer.simulate` counts what is out of bounds.
"""

from __future__ import annotations

import numpy as np

from packer.packing import kernels_fit
from packer.packing.backlog import Backlog, Filled, Stop
from packer.packing.config import PackingConfig
from packer.packing.greedy import limits_of, rest_of, start_state, steps_of, with_room
from packer.workload import Workload


def first_fit(backlog: Backlog, config: PackingConfig, workload: Workload, final: bool) -> Filled:
    """Make the whole steps that a backlog allows; see `packer.packing.backlog.Policy`."""
    return _fill(backlog, config, workload, final, best_fit=False)


def best_fit(backlog: Backlog, config: PackingConfig, workload: Workload, final: bool) -> Filled:
    """Make the whole steps that a backlog allows; see `packer.packing.backlog.Policy`."""
    return _fill(backlog, config, workload, final, best_fit=True)


def _fill(
    backlog: Backlog, config: PackingConfig, workload: Workload, final: bool, *, best_fit: bool
) -> Filled:
    tokens = backlog.pieces.tokens
    hand, state = with_room(backlog.hand, len(tokens)), start_state(backlog, tokens)
    row, row_work = kernels_fit.fit_steps(
        tokens,
        workload.of(tokens),
        hand,
        limits_of(config, 0),
        state,
        final,
        config.global_batches * config.num_micro_batches * config.max_tokens,
        best_fit,
    )
    return Filled(
        steps=steps_of(backlog.pieces, row, row_work + workload.constant, backlog.step, config),
        backlog=rest_of(backlog, row, hand, np.empty(0, np.int64), state),
        stop=Stop.MORE,
    )
