"""`concat`: fill and cut, the baseline of every other policy.

Micro-batches of exactly S tokens in stream order; a piece that crosses a border is cut there, and
each part attends only to itself. A micro-batch closes early only at `max_pieces`. Nothing is
balanced, nothing is displaced while steps hold the A tokens that they take in, and cutting makes
attention cheaper and context shorter: compare its time per token, not its ratios.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from packer.packing import kernels_concat, kernels_order
from packer.packing.backlog import Backlog, Filled, Stop, lag_limit
from packer.packing.config import PackingConfig
from packer.plan import Int64, Pieces, Steps
from packer.workload import Workload

UNBOUNDED = np.iinfo(np.int64).max


def fill(backlog: Backlog, config: PackingConfig, workload: Workload, final: bool) -> Filled:
    """Make the whole steps that a backlog allows; see `packer.packing.backlog.Policy`.

    Where the stream's end has A tokens but cannot fill N micro-batches to S (an intake that
    `max_pieces` lowered), the rest is spread evenly over a last step.
    """
    made: list[Pieces] = []
    rows: list[Int64] = []
    stop = Stop.MORE
    tokens = backlog.pieces.tokens
    parts = [np.empty(len(tokens) + config.num_micro_batches, np.int64) for _ in range(4)]
    piece, offset, left = 0, 0, int(tokens.sum())
    state = backlog
    while left >= max(config.intake_tokens, config.num_micro_batches):
        count, piece_after, offset_after = _cut(tokens, piece, offset, left, config, parts, final)
        if count < 0:
            break
        step = _parts(backlog.pieces, [part[:count] for part in parts])
        stop = _bound(step, state.step, config)
        if stop is not Stop.MORE:
            break
        made.append(step)
        rows.append(parts[3][:count] + len(rows) * config.num_micro_batches)
        held = int(step.tokens.sum())
        piece, offset, left = piece_after, offset_after, left - held
        state = _advance(state, step, held, config)
    rest = _rest(backlog.pieces, piece, offset)
    steps = _steps(made, rows, backlog.step, config, workload)
    return Filled(steps=steps, backlog=replace(state, pieces=rest), stop=stop)


def _cut(
    tokens: Int64,
    piece: int,
    offset: int,
    left: int,
    config: PackingConfig,
    parts: list[Int64],
    final: bool,
) -> tuple[int, int, int]:
    """One step's parts, as `kernels_concat.cut_step` gives them; at the end, the rest spread."""
    num = config.num_micro_batches
    max_pieces = config.max_pieces or UNBOUNDED
    room = np.full(num, config.context_length, np.int64)
    cut = kernels_concat.cut_step(tokens, piece, offset, room, max_pieces, *parts)
    if cut[0] < 0 and final:
        room = left // num + (np.arange(num) < left % num)
        cut = kernels_concat.cut_step(tokens, piece, offset, room, max_pieces, *parts)
    count, piece_after, offset_after = cut
    return int(count), int(piece_after), int(offset_after)


def _parts(pieces: Pieces, parts: list[Int64]) -> Pieces:
    piece, start, stop, _ = parts
    whole = pieces.take(piece)
    return replace(
        whole,
        doc_start=whole.doc_start + start,
        doc_stop=whole.doc_start + stop,
        position=whole.position + start,
    )


def _bound(step: Pieces, number: int, config: PackingConfig) -> Stop:
    """What is wrong with a step's arrivals, if anything."""
    first, last = (int(step.position[end]) // config.intake_tokens for end in (0, -1))
    if last - number > config.max_displacement:
        return Stop.EARLY
    if number - first > config.max_displacement:
        return Stop.LATE
    return Stop.LAG if number - first > lag_limit(config) else Stop.MORE


def _advance(state: Backlog, step: Pieces, held: int, config: PackingConfig) -> Backlog:
    in_pace = int(step.position[0]) // config.intake_tokens >= state.step
    end = int(step.position[-1] + step.tokens[-1])
    return replace(
        state,
        step=state.step + 1,
        intake=end // config.intake_tokens,
        window_steps=0 if in_pace else state.window_steps + 1,
        window_tokens=0 if in_pace else state.window_tokens + held,
    )


def _rest(pieces: Pieces, piece: int, offset: int) -> Pieces:
    rest = pieces.take(slice(piece, None))
    if not offset:
        return rest
    shift = np.zeros(len(rest), np.int64)
    shift[0] = offset
    return replace(rest, doc_start=rest.doc_start + shift, position=rest.position + shift)


def _steps(
    made: list[Pieces],
    rows: list[Int64],
    first_step: int,
    config: PackingConfig,
    workload: Workload,
) -> Steps | None:
    if not made:
        return None
    num = config.num_micro_batches
    pieces, row = Pieces.concatenate(made), np.concatenate(rows)
    starts = np.flatnonzero(np.diff(row, prepend=-1))
    work = np.add.reduceat(workload.of(pieces.tokens), starts) + workload.constant
    # (steps, num): stable, so that ties stay in stream order
    order = np.argsort(-work.reshape(-1, num), axis=1, kind="stable")
    slot = np.empty_like(order)
    np.put_along_axis(slot, order, np.arange(num)[np.newaxis], axis=1)
    new_row = (slot + np.arange(len(slot))[:, np.newaxis] * num).ravel()
    index, offsets = kernels_order.gather(new_row[row], len(work))
    row_workload = np.empty_like(work)
    row_workload[new_row] = work
    return Steps(
        first_step=first_step,
        num_micro_batches=num,
        pieces=pieces.take(index),
        row_offsets=offsets,
        row_workload=row_workload,
    )
