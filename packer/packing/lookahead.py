"""`lookahead`: windows of steps planned as a whole, with the whole window in sight.

`reorder` makes the steps; then each window of consecutive steps is searched for a better place of
its long pieces, and its short ones fill up what is left. Offline nothing has to wait in a queue: a
long piece may run before its arrival as well as after it, so pieces that need each other meet in
the middle, for half the displacement. On the lengths of WLB-LLM's Figure 3 a full-window piece
weighs 3.8 S and within 1.25 S only its like can match it: they come together in groups of N, pairs
of half-window ones beside three-quarter ones, and below an eleventh of S all is filler.

A window that the search does not improve stays as `reorder` made it. Windows know nothing of one
another, so they could be searched side by side.
"""

from __future__ import annotations

import numpy as np

from packer.packing import kernels_fluid, kernels_lookahead, kernels_order
from packer.packing.backlog import Backlog, Filled, Stop
from packer.packing.greedy import fill_greedily, limits_of
from packer.plan import Int64, PackingConfig, Pieces, Steps
from packer.workload import SCALE, Workload

LONG, VERY_LONG = 11, 4
"""Pieces of S / VERY_LONG tokens or more are placed one by one, and of those down to S / LONG the
longest, up to MANY_LONG a micro-batch in all: where there are more of them, they even out."""
MANY_LONG = 2
MARGIN = 0.02
"""Share of the displacement budget kept for what the fluid does not show."""


def fill(backlog: Backlog, config: PackingConfig, workload: Workload, final: bool) -> Filled:
    """Make the whole windows that a backlog allows; see `packer.packing.backlog.Policy`."""
    made: list[Steps] = []
    stop = Stop.MORE
    while stop is Stop.MORE:
        filled = fill_greedily(
            backlog,
            config,
            workload,
            final=final,
            thresholds=(),
            patience=1,
            max_steps=config.window_steps,
        )
        steps, stop = filled.steps, filled.stop
        if steps is None or (steps.num_steps < config.window_steps and not final):
            break
        made.append(improved(steps, config, workload))
        backlog = filled.backlog
    return Filled(
        steps=Steps.concatenate(made) if made else None,
        backlog=backlog,
        stop=stop,
    )


def moves_per_piece(config: PackingConfig) -> int:
    """Effort: as configured, else less where a move looks at more micro-batches."""
    return config.moves_per_piece or max(50, 800 * 64 // max(64, config.num_micro_batches))


def improved(steps: Steps, config: PackingConfig, workload: Workload) -> Steps:
    """The same pieces in the same number of steps, by no means worse.

    Args:
        steps: a window, within the bounds.
        config: the bounds, the displacement budget and the effort.
        workload: what a piece costs.

    Returns:
        Steps within the bounds whose sum of heaviest micro-batches is not larger and whose mean
        displacement is in the budget; the ones given where none such were found.
    """
    order = np.argsort(steps.pieces.position)
    pieces = steps.pieces.take(order)
    arrival = pieces.position // config.intake_tokens - steps.first_step
    runs_in = (steps.piece_step - steps.first_step)[order]
    step = _searched(pieces, arrival, runs_in, steps.num_steps, config, workload)
    if step is None:
        return steps
    found = _placed(pieces, step, steps, config, workload)
    if found is None or not _keeps(found, config):
        return steps
    return found if _maxima(found) < _maxima(steps) else steps


def _searched(
    pieces: Pieces,
    arrival: Int64,
    runs_in: Int64,
    num_steps: int,
    config: PackingConfig,
    workload: Workload,
) -> Int64 | None:
    """The step of each piece, counted from the window's first, (pieces,); None: none found.

    Args:
        pieces: ascending by position.
        arrival: of each, counted like that, (pieces,).
        runs_in: where each runs now, (pieces,).
        num_steps: of the window.
        config: the bounds.
        workload: what a piece costs.
    """
    tokens, work = pieces.tokens, workload.of(pieces.tokens)
    by_length = np.argsort(-tokens, kind="stable")
    long = by_length[: _num_long(tokens, num_steps, config)]
    short = np.sort(by_length[len(long) :])
    held = np.bincount(runs_in[short], weights=tokens[short], minlength=num_steps)
    arrived = np.bincount(
        np.clip(arrival[short], 0, num_steps - 1), weights=tokens[short], minlength=num_steps
    )
    short_tokens = int(tokens[short].sum())
    window = kernels_lookahead.Window(
        tokens=tokens[long],
        work=work[long].astype(np.float64),
        arrival=arrival[long],
        step=runs_in[long],
        filler=held.astype(np.int64),
        carry=np.concatenate([[0], np.cumsum(arrived - held)]).astype(np.int64),
    )
    bounds = kernels_fluid.Bounds(
        num=config.num_micro_batches,
        max_tokens=config.max_tokens,
        max_displacement=config.max_displacement,
        filler_rate=int(work[short].sum()) / short_tokens if short_tokens else float(SCALE),
        budget=config.mean_displacement * (1 - MARGIN) * int(tokens.sum()),
        token_work=float(SCALE),
    )
    moves = moves_per_piece(config) * len(long)
    if not kernels_lookahead.search(window, bounds, moves, np.uint64(int(pieces.position[0]) + 1)):
        return None
    step = np.empty(len(pieces), np.int64)
    step[long] = window.step
    ends = np.cumsum(tokens[short]) - tokens[short] // 2
    step[short] = np.searchsorted(np.cumsum(window.filler), ends).clip(0, num_steps - 1)
    return step


def _num_long(tokens: Int64, num_steps: int, config: PackingConfig) -> int:
    """How many of a window's pieces are placed one by one."""
    very_long = int(np.count_nonzero(tokens * VERY_LONG >= config.context_length))
    long = int(np.count_nonzero(tokens * LONG >= config.context_length))
    return max(very_long, min(long, MANY_LONG * config.num_micro_batches * num_steps))


def _placed(
    pieces: Pieces, step: Int64, like: Steps, config: PackingConfig, workload: Workload
) -> Steps | None:
    """Pieces in their steps' micro-batches; None where some find no room or leave one empty."""
    tokens, work = pieces.tokens, workload.of(pieces.tokens)
    row, row_work, whole = kernels_lookahead.settle(
        tokens, work, step, np.argsort(-work, kind="stable"), limits_of(config, 1), like.num_steps
    )
    if not whole:
        return None
    order, offsets = kernels_order.gather(row, len(row_work))
    return Steps(
        first_step=like.first_step,
        num_micro_batches=config.num_micro_batches,
        pieces=pieces.take(order),
        row_offsets=offsets,
        row_workload=row_work + workload.constant,
    )


def _keeps(steps: Steps, config: PackingConfig) -> bool:
    """Whether displacement is in its bounds."""
    arrival = steps.pieces.position // config.intake_tokens
    displacement = np.abs(steps.piece_step - arrival)
    tokens = steps.pieces.tokens
    mean = int((displacement * tokens).sum()) / int(tokens.sum())
    return int(displacement.max()) <= config.max_displacement and mean <= config.mean_displacement


def _maxima(steps: Steps) -> int:
    return int(steps.row_workload.reshape(steps.num_steps, -1).max(axis=1).sum())
