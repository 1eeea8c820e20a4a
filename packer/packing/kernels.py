"""Compiled loops of the packing policies: flat int64 arrays in and out, no validation.

`greedy_steps` serves `reorder` and `wlb`. Indices are into the backlog's pieces, ascending by
position. Scalars travel in two tables: `limits` (read only) and `state` (changed in place).
"""

from __future__ import annotations

import numpy as np

from packer.jit import kernel
from packer.packing.kernels_order import by_work, in_groups, sort_ascending

MORE, LAG, LATE, EARLY = 0, 1, 2, 3
"""As in `backlog.Stop`."""
NUM, INTAKE_TOKENS, MAX_TOKENS, MAX_PIECES = range(4)
RELEASE_AGE, PATIENCE, MAX_AGE, MAX_LAG, MAX_STEPS = range(4, 9)
"""Places in `limits`; ages in steps."""
STEP, INTAKE, TAKEN, HAND, HAND_TOKENS, QUEUED, LEFT, LEFT_TOKENS, WINDOW_STEPS, WINDOW_TOKENS = (
    range(10)
)
"""Places in `state`; LEFT counts the pieces of the backlog that no step holds."""


@kernel
def level_of(tokens, thresholds):
    """The queue of a piece, or -1 where it is no outlier."""
    level = -1
    for place in range(len(thresholds)):
        if tokens >= thresholds[place]:
            level = place
    return level


@kernel
def take_in(tokens, arrival, thresholds, hand, queued, limits, state, final):
    """Take in what the next step may place; False where that is not known to be complete yet.

    Arrivals up to the step's own, none while the hand exceeds A tokens, and further ones until
    there is a piece for every micro-batch. An arrival is complete when a piece of a later one is
    there, so the last piece is taken in only at the stream's end. Only appends, so that it can go
    on after more pieces.
    """
    num_pieces = len(tokens)
    while True:
        due = state[INTAKE] <= state[STEP] and state[HAND_TOKENS] <= limits[INTAKE_TOKENS]
        if not due and state[HAND] + state[QUEUED] >= limits[NUM]:
            break
        if state[TAKEN] == num_pieces and final:
            break
        if not final and arrival[num_pieces - 1] <= state[INTAKE]:
            return False
        while state[TAKEN] < num_pieces and arrival[state[TAKEN]] == state[INTAKE]:
            index = state[TAKEN]
            if level_of(tokens[index], thresholds) < 0:
                hand[state[HAND]] = index
                state[HAND] += 1
                state[HAND_TOKENS] += tokens[index]
            else:
                queued[state[QUEUED]] = index
                state[QUEUED] += 1
            state[TAKEN] += 1
        state[INTAKE] += 1
    return True


@kernel
def release(tokens, arrival, thresholds, queued, limits, state, everything, released):
    """Move outliers from `queued` to `released`, oldest first; returns how many.

    A queue that holds N gives N; an outlier of the release age goes without waiting; and where
    there is no piece for every micro-batch, the oldest fill up.
    """
    quota = np.zeros(len(thresholds) + 1, np.int64)
    for place in range(state[QUEUED]):
        quota[level_of(tokens[queued[place]], thresholds)] += 1
    for level in range(len(thresholds)):
        quota[level] = limits[NUM] if quota[level] >= limits[NUM] else 0
    count = 0
    for place in range(state[QUEUED]):
        index = queued[place]
        level = level_of(tokens[index], thresholds)
        old = state[STEP] - arrival[index] >= limits[RELEASE_AGE]
        if everything or old or quota[level] > 0:
            quota[level] -= 1
            released[count] = index
            count += 1
            queued[place] = -1
    for place in range(state[QUEUED]):
        if state[HAND] + count >= limits[NUM]:
            break
        if queued[place] >= 0:
            released[count] = queued[place]
            count += 1
            queued[place] = -1
    kept = 0
    for place in range(state[QUEUED]):
        if queued[place] >= 0:
            queued[kept] = queued[place]
            kept += 1
    state[QUEUED] = kept
    return count


@kernel
def placing_order(tokens, workload, arrival, candidates, limits, step):
    """The order in which to place: (candidates,), indices.

    First what has reached the release age, oldest first, so that the displacement bound holds;
    then what is longer than half of S_max, since short pieces spread over all micro-batches would
    leave no room for it; then what has waited for the patience of the policy, oldest first; then
    the rest. Inside the second and the last group the work falls, ties by position.
    """
    sort_ascending(candidates)
    group = np.empty(len(candidates), np.int64)
    key = np.zeros(len(candidates), np.int64)
    for place in range(len(candidates)):
        index = candidates[place]
        age = step - arrival[index]
        if age >= limits[RELEASE_AGE]:
            group[place] = 0
        elif 2 * tokens[index] > limits[MAX_TOKENS]:
            group[place] = 1
        elif age >= limits[PATIENCE]:
            group[place] = 2
        else:
            group[place] = 3
        if group[place] % 2:
            key[place] = -workload[index]
    return in_groups(candidates, group, key, 4)


@kernel
def place_one(tokens, workload, work, room, free):
    """Put a piece into the micro-batch of least work that has room; -1 where none has.

    `work`, `room` in tokens and `free` in pieces are of each micro-batch.
    """
    best = -1
    least = np.int64(9223372036854775807)
    for j in range(len(work)):
        if work[j] < least and room[j] >= tokens and free[j] > 0:
            best = j
            least = work[j]
    if best >= 0:
        work[best] += workload
        room[best] -= tokens
        free[best] -= 1
    return best


@kernel
def place(tokens, workload, order, limits, slot, work, room):
    """Put each piece into the micro-batch of least work that has room; `slot` -1 where none has."""
    free = np.full(limits[NUM], limits[MAX_PIECES], np.int64)
    for rank in range(len(order)):
        index = order[rank]
        slot[rank] = place_one(tokens[index], workload[index], work, room, free)


@kernel
def overdue(arrival, order, limits, state):
    """Whether a piece that may run now is out of its displacement bound, and on which side.

    No queued piece is: those are released before.
    """
    for rank in range(len(order)):
        age = state[STEP] - arrival[order[rank]]
        if age > limits[MAX_AGE]:
            return LATE
        if age < -limits[MAX_AGE]:
            return EARLY
    return MORE


@kernel
def finish_step(tokens, order, slot, rank, hand, row, first_row, state):
    """Note where the placed pieces run; the others make the new hand, ascending."""
    left = 0
    left_tokens = np.int64(0)
    placed_tokens = np.int64(0)
    for place in range(len(order)):
        if slot[place] >= 0:
            row[order[place]] = first_row + rank[slot[place]]
            placed_tokens += tokens[order[place]]
        else:
            hand[left] = order[place]
            left += 1
            left_tokens += tokens[order[place]]
    sort_ascending(hand[:left])
    state[HAND] = left
    state[HAND_TOKENS] = left_tokens
    state[LEFT] -= len(order) - left
    state[LEFT_TOKENS] -= placed_tokens
    return placed_tokens


@kernel
def first_pieces(order, slot, num):
    """The first piece, by position, of each micro-batch, (num,)."""
    first = np.full(num, np.int64(9223372036854775807), np.int64)
    for place in range(len(order)):
        if slot[place] >= 0:
            first[slot[place]] = min(first[slot[place]], order[place])
    return first


@kernel
def greedy_steps(tokens, workload, arrival, thresholds, hand, queued, limits, state, final):
    """Make all whole steps that the backlog allows, up to MAX_STEPS of them.

    `tokens`, `workload` and `arrival` are of each piece, (pieces,); `thresholds` of the outlier
    queues, ascending, (queues,); `hand` and `queued` hold indices in their first state[HAND] and
    state[QUEUED] places and have room for all pieces; `final` says that the stream ends here.

    Returns:
        row: of each piece, step-major and by rank inside a step; -1 where it is left, (pieces,).
        row_work: of each row, without the constant per micro-batch.
        stop: why there are no more steps.
    """
    num = limits[NUM]
    row = np.full(len(tokens), -1, np.int64)
    row_work = np.empty((state[LEFT] // num + 1) * num, np.int64)
    num_rows = 0
    stop = MORE
    while state[LEFT_TOKENS] >= limits[INTAKE_TOKENS] and state[LEFT] >= num:
        if num_rows == limits[MAX_STEPS] * num:
            break
        if not take_in(tokens, arrival, thresholds, hand, queued, limits, state, final):
            break
        everything = state[TAKEN] == len(tokens)
        order = np.empty(state[HAND] + state[QUEUED], np.int64)
        for place_in_hand in range(state[HAND]):
            order[place_in_hand] = hand[place_in_hand]
        released = release(
            tokens, arrival, thresholds, queued, limits, state, everything, order[state[HAND] :]
        )
        order = order[: state[HAND] + released]
        stop = overdue(arrival, order, limits, state)
        if stop == MORE and state[STEP] - state[INTAKE] > limits[MAX_LAG] and not everything:
            stop = LAG
        if stop != MORE:
            break
        order = placing_order(tokens, workload, arrival, order, limits, state[STEP])
        slot = np.empty(len(order), np.int64)
        work = np.zeros(num, np.int64)
        room = np.full(num, limits[MAX_TOKENS], np.int64)
        place(tokens, workload, order, limits, slot, work, room)
        rank = by_work(work, first_pieces(order, slot, num))
        held = finish_step(tokens, order, slot, rank, hand, row, num_rows, state)
        for j in range(num):
            row_work[num_rows + rank[j]] = work[j]
        num_rows += num
        in_pace = state[INTAKE] > state[STEP]
        state[WINDOW_STEPS] = 0 if in_pace else state[WINDOW_STEPS] + 1
        state[WINDOW_TOKENS] = 0 if in_pace else state[WINDOW_TOKENS] + held
        state[STEP] += 1
    return row, row_work[:num_rows], stop
