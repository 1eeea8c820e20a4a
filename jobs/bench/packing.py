"""How fast policies pack the paper's document lengths, beside plain Python with a heap."""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import numpy as np

from jobs.simulation import fig3_documents
from packer.lengths import fig3_lengths
from packer.packing.config import PackingConfig
from packer.packing.packer import Packer
from packer.plan import Pieces
from packer.simulate import compile_kernels
from packer.workload import Workload

CONTEXT_LENGTH = 131_072
CHUNK_PIECES = 65_536
"""The stream comes in chunks of this many pieces, as planning gives it."""
DOCUMENTS = 1_000_000
PLAIN_DOCUMENTS = 100_000
REPEATS = 3
POLICIES = ("concat", "reorder", "wlb")
NUM_MICRO_BATCHES = (8, 64)
SEARCHED_STEPS = 66
"""Two windows of look-ahead, and the start of a third."""
SEARCHED_NUM = (4, 16, 64, 256)
CROSSOVER = 47_100
WORKLOAD = Workload(crossover=CROSSOVER)


def run() -> list[dict[str, Any]]:
    """A row a policy and number of micro-batches: documents a CPU second, median of the repeats.

    Compiling is not in it; pushing chunks through `Packer` is. `plain_python` is the rule of
    `wlb` without a bound on displacement, its micro-batches in a heap.
    """
    rows = []
    for num in NUM_MICRO_BATCHES:
        config = PackingConfig(
            num_micro_batches=num,
            context_length=CONTEXT_LENGTH,
            max_tokens=CONTEXT_LENGTH * 5 // 4,
            thresholds=(CONTEXT_LENGTH // 2,),
        )
        for policy in POLICIES:
            rows.append(_row(policy, config, DOCUMENTS, _packer(policy, config)))
        rows.append(_row("plain_python", config, PLAIN_DOCUMENTS, _plain(config)))
    for num in SEARCHED_NUM:
        config = PackingConfig(
            num_micro_batches=num,
            context_length=CONTEXT_LENGTH,
            max_tokens=CONTEXT_LENGTH * 5 // 4,
        )
        documents = fig3_documents(SEARCHED_STEPS, num, CONTEXT_LENGTH)
        rows.append(_row("lookahead", config, documents, _packer("lookahead", config)))
    return rows


def _row(
    policy: str, config: PackingConfig, documents: int, once: Callable[[np.ndarray], int]
) -> dict[str, Any]:
    lengths = fig3_lengths(documents, seed=0)
    seconds = []
    steps = 0
    for _ in range(REPEATS):
        started = time.process_time()
        steps = once(lengths)
        seconds.append(time.process_time() - started)
    return {
        "policy": policy,
        "num_micro_batches": config.num_micro_batches,
        "documents": documents,
        "steps": steps,
        "documents_per_s": documents / median(seconds),
        "ms_per_step": 1000 * median(seconds) / steps if steps else None,
    }


def _packer(policy: str, config: PackingConfig) -> Callable[[np.ndarray], int]:
    def once(lengths: np.ndarray) -> int:
        pieces = Pieces.from_lengths(lengths)
        packer = Packer(policy, config, WORKLOAD)
        steps = 0
        for start in range(0, len(pieces), CHUNK_PIECES):
            made = packer.push(pieces.take(slice(start, start + CHUNK_PIECES)))
            steps += 0 if made is None else made.num_steps
        made = packer.push(Pieces.empty(), final=True)
        return steps + (0 if made is None else made.num_steps)

    compile_kernels(policy, config, WORKLOAD)
    return once


def _plain(config: PackingConfig) -> Callable[[np.ndarray], int]:
    return lambda lengths: len(plain_wlb(lengths.tolist(), config))


def plain_wlb(lengths: list[int], config: PackingConfig) -> list[list[list[int]]]:
    """`wlb` with one queue, in plain Python: steps of micro-batches of lengths.

    One heap holds micro-batches by work; one without room for a piece waits in a second heap, by
    room, until the pieces, which get shorter, are short enough.
    """
    num, intake = config.num_micro_batches, config.intake_tokens
    threshold = config.thresholds[0]
    square = 256 / CROSSOVER
    steps: list[list[list[int]]] = []
    hand: list[int] = []
    queued: list[int] = []
    taken = 0
    for length in lengths:
        (queued if length >= threshold else hand).append(length)
        taken += length
        if taken < intake * (len(steps) + 1) or len(hand) < num:
            continue
        if len(queued) >= num:
            hand += queued[:num]
            del queued[:num]
        hand.sort(reverse=True)
        by_work = [(0.0, slot) for slot in range(num)]
        by_room: list[tuple[int, float, int]] = []
        room = [config.max_tokens] * num
        step: list[list[int]] = [[] for _ in range(num)]
        left = []
        for piece in hand:
            while by_room and -by_room[0][0] >= piece:
                _, work, slot = heapq.heappop(by_room)
                heapq.heappush(by_work, (work, slot))
            while by_work and room[by_work[0][1]] < piece:
                work, slot = heapq.heappop(by_work)
                heapq.heappush(by_room, (-room[slot], work, slot))
            if by_work:
                work, slot = by_work[0]
                room[slot] -= piece
                step[slot].append(piece)
                heapq.heapreplace(by_work, (work + piece * 256 + piece * piece * square, slot))
            else:
                left.append(piece)
        hand = left
        steps.append(step)
    return steps
