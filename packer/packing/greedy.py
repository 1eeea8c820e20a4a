"""What `reorder` and `wlb` share: the typed wrapper of `kernels.greedy_steps`."""

from __future__ import annotations

import numpy as np

from packer.packing import kernels, kernels_order
from packer.packing.backlog import Backlog, Filled, Stop, lag_limit, release_age
from packer.packing.config import PackingConfig
from packer.plan import Int64, Pieces, Steps
from packer.workload import Workload

UNBOUNDED = np.iinfo(np.int64).max
MANY_STEPS = 1 << 31


def fill_greedily(
    backlog: Backlog,
    config: PackingConfig,
    workload: Workload,
    *,
    final: bool,
    thresholds: tuple[int, ...],
    patience: int,
    max_steps: int = MANY_STEPS,
) -> Filled:
    """Make the whole steps that a backlog allows, each piece to the least work with room.

    Args:
        backlog: pieces at hand and the state left by the last call.
        config: the bounds; its own thresholds are not used.
        workload: what a piece costs.
        final: the stream ends with the backlog.
        thresholds: of the outlier queues, in tokens; empty for no queue.
        patience: steps after which a short piece goes before the step's new ones.
        max_steps: how many steps to make at most.
    """
    pieces = backlog.pieces
    tokens = pieces.tokens
    hand, queued = with_room(backlog.hand, len(pieces)), with_room(backlog.queued, len(pieces))
    state = start_state(backlog, tokens)
    row, row_work, stop = kernels.greedy_steps(
        tokens,
        workload.of(tokens),
        pieces.position // config.intake_tokens,
        np.array(thresholds, np.int64),
        hand,
        queued,
        limits_of(config, patience, max_steps),
        state,
        final,
    )
    steps = steps_of(pieces, row, row_work + workload.constant, backlog.step, config)
    return Filled(
        steps=steps, backlog=rest_of(backlog, row, hand, queued, state), stop=Stop(int(stop))
    )


def limits_of(config: PackingConfig, patience: int, max_steps: int = MANY_STEPS) -> Int64:
    """The kernels' `limits` table, shape (9,)."""
    limits = np.empty(9, np.int64)
    limits[kernels.NUM] = config.num_micro_batches
    limits[kernels.INTAKE_TOKENS] = config.intake_tokens
    limits[kernels.MAX_TOKENS] = config.max_tokens
    limits[kernels.MAX_PIECES] = config.max_pieces or UNBOUNDED
    limits[kernels.RELEASE_AGE] = release_age(config)
    limits[kernels.PATIENCE] = patience
    limits[kernels.MAX_AGE] = config.max_displacement
    limits[kernels.MAX_LAG] = lag_limit(config)
    limits[kernels.MAX_STEPS] = max_steps
    return limits


def start_state(backlog: Backlog, tokens: Int64) -> Int64:
    """The kernels' `state` table for a backlog of pieces of that many tokens, shape (10,)."""
    state = np.empty(10, np.int64)
    state[kernels.STEP] = backlog.step
    state[kernels.INTAKE] = backlog.intake
    state[kernels.TAKEN] = backlog.num_taken
    state[kernels.HAND] = len(backlog.hand)
    state[kernels.HAND_TOKENS] = tokens[backlog.hand].sum()
    state[kernels.QUEUED] = len(backlog.queued)
    state[kernels.LEFT] = len(tokens)
    state[kernels.LEFT_TOKENS] = tokens.sum()
    state[kernels.WINDOW_STEPS] = backlog.window_steps
    state[kernels.WINDOW_TOKENS] = backlog.window_tokens
    return state


def steps_of(
    pieces: Pieces, row: Int64, row_workload: Int64, first_step: int, config: PackingConfig
) -> Steps | None:
    """The steps made of the pieces whose row is not -1; None where there is no row."""
    if not len(row_workload):
        return None
    order, offsets = kernels_order.gather(row, len(row_workload))
    return Steps(
        first_step=first_step,
        num_micro_batches=config.num_micro_batches,
        pieces=pieces.take(order),
        row_offsets=offsets,
        row_workload=row_workload,
    )


def rest_of(backlog: Backlog, row: Int64, hand: Int64, queued: Int64, state: Int64) -> Backlog:
    """The backlog without the pieces that a row holds."""
    left = row < 0
    new_index = np.cumsum(left) - 1
    num_taken = int(state[kernels.TAKEN])
    return Backlog(
        pieces=backlog.pieces.take(np.flatnonzero(left)),
        stream_tokens=backlog.stream_tokens,
        num_taken=int(np.count_nonzero(left[:num_taken])),
        hand=new_index[hand[: state[kernels.HAND]]],
        queued=new_index[queued[: state[kernels.QUEUED]]],
        step=int(state[kernels.STEP]),
        intake=int(state[kernels.INTAKE]),
        window_steps=int(state[kernels.WINDOW_STEPS]),
        window_tokens=int(state[kernels.WINDOW_TOKENS]),
    )


def with_room(indices: Int64, num_pieces: int) -> Int64:
    """Indices in front of an array that a kernel can append to, shape (num_pieces,)."""
    array = np.empty(num_pieces, np.int64)
    array[: len(indices)] = indices
    return array
