"""`lookahead`: windows of steps planned as a whole, with the whole window in sight.

`reorder` makes the steps; then each window of consecutive steps is searched for a better place of
its long pieces, and its short ones fill up what is left.
Offline nothing has to wait in a queue: a long piece may run before its arrival as well as after
it, so pieces that need each other meet in the middle, for half the displacement. On the lengths of
WLB-LLM's Figure 3 a full-window piece weighs 3.8 S and within 1.25 S only its like can match it:
they come together in groups of N, pairs of half-window ones beside three-quarter ones, and below an
eleventh of S all is filler.

What counts is the time of a step on the pipeline's clock (`PackingConfig.schedule`), or the work of
its heaviest micro-batch. Bands of tokens and of sources are goals: of what was found the window
with the fewest tokens out of them is taken. A window that the search does not improve stays as it
was. Windows know nothing of one another: `fill` makes them in turn, `improved` searches one, and
any number of them can be searched side by side.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from packer.packing import kernels_order
from packer.packing.backlog import Backlog, Filled, Stop
from packer.packing.config import PackingConfig
from packer.packing.greedy import fill_greedily, limits_of
from packer.packing.search import settling
from packer.packing.search.objective import Objective
from packer.packing.search.window import search_window
from packer.plan import Int64, Pieces, Steps
from packer.workload import Workload

MARGINS = (0.02, 0.15)
"""Shares of the displacement budget kept for what the fluid does not show; the second where the
first was too little."""

EVEN = 1.0005
"""Time over work of a window that is even enough to stay as it is."""


def fill(backlog: Backlog, config: PackingConfig, workload: Workload, final: bool) -> Filled:
    """Make the next window as `reorder` makes it; see `packer.packing.backlog.Policy`.

    Only the stream's last may have fewer than `window_steps` steps.
    """
    nothing = Filled(steps=None, backlog=backlog, stop=Stop.MORE)
    arrived = backlog.stream_tokens // config.intake_tokens
    if arrived < backlog.step + config.window_steps and not final:
        return nothing  # not tried before it can succeed: windows may span many chunks
    filled = fill_greedily(
        backlog,
        config,
        workload,
        final=final,
        thresholds=(),
        patience=1,
        max_steps=config.window_steps,
    )
    if filled.steps is None or (filled.steps.num_steps < config.window_steps and not final):
        return replace(nothing, stop=filled.stop)
    return replace(filled, again=True)


def improved(steps: Steps, config: PackingConfig, workload: Workload) -> Steps:
    """The same pieces in the same number of steps, by no means worse.

    Args:
        steps: a window, within the bounds.
        config: the bounds, the displacement budget and the effort.
        workload: what a piece costs.

    Returns:
        Steps within the bounds whose mean displacement is in the budget, with fewer tokens out of
        the bands or as many and less time; the ones given where none such were found.
    """
    objective = Objective.of(config)
    outside, time = objective.cost(steps, config)
    if not outside and time < EVEN * float(steps.row_workload.sum()):
        return steps
    pieces = steps.pieces.take(np.argsort(steps.pieces.position))
    for margin in MARGINS:
        step = search_window(steps, config, workload, margin)
        if step is None:
            return steps
        found = _placed(pieces, step, steps, config, workload)
        if found is not None and _keeps(found, config):
            return found if objective.cost(found, config) < (outside, time) else steps
    return steps


def _placed(
    pieces: Pieces, step: Int64, like: Steps, config: PackingConfig, workload: Workload
) -> Steps | None:
    """Pieces in their steps' micro-batches; None where some find no room or leave one empty."""
    tokens, work = pieces.tokens, workload.of(pieces.tokens)
    row, row_work, whole = settling.settle(
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
    displacement, tokens = steps.displacement(config.intake_tokens), steps.pieces.tokens
    mean = int((displacement * tokens).sum()) / int(tokens.sum())
    return int(displacement.max()) <= config.max_displacement and mean <= config.mean_displacement
