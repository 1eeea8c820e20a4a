"""`wlb_printed`: Algorithm 1 of WLB-LLM (arXiv 2503.17924) exactly as printed, to simulate only.

Each iteration takes in a global batch of A tokens; outliers queue; a queue with N of them releases
N; what remained goes first and unsorted, then the new pieces by falling work; each goes to the
micro-batch of least work if it stays *below* S_max there, else to the shortest if it does, else it
remains. No iteration waits, nothing drains at the stream's end, and nothing bounds pieces or
displacement: with S_max = S a piece of full length never runs. `packer.packing.wlb` closes these.
"""

from __future__ import annotations

import numpy as np

from packer.packing import kernels_printed
from packer.packing.backlog import Backlog, Filled, Stop
from packer.packing.config import PackingConfig
from packer.packing.greedy import limits_of, rest_of, start_state, steps_of, with_room
from packer.workload import Workload


def fill(backlog: Backlog, config: PackingConfig, workload: Workload, final: bool) -> Filled:
    """Make the steps of all whole global batches; what is left at the end stays in the backlog.

    Stops with `Stop.EMPTY` where a micro-batch would be empty, which the algorithm does not prevent
    and a plan cannot express.
    """
    pieces = backlog.pieces
    tokens = pieces.tokens
    hand, queued = with_room(backlog.hand, len(pieces)), with_room(backlog.queued, len(pieces))
    state = start_state(backlog, tokens)
    row, row_work, stop = kernels_printed.printed_steps(
        tokens,
        workload.of(tokens),
        pieces.position // config.intake_tokens,
        np.array(config.thresholds, np.int64),
        hand,
        queued,
        limits_of(config, 0),
        state,
        backlog.stream_tokens,
    )
    steps = steps_of(pieces, row, row_work + workload.constant, backlog.step, config)
    return Filled(
        steps=steps, backlog=rest_of(backlog, row, hand, queued, state), stop=Stop(int(stop))
    )
