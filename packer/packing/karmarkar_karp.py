"""`karmarkar_karp`: the largest differencing method on workload, as trainers deal out a batch.

For comparison only. The pieces that arrive in a step are partitioned into its N micro-batches
(Karmarkar and Karp, "The differencing method of set partitioning", 1982, for N sets): of the two
partial partitions that differ most, the fullest set of the one joins the emptiest of the other.
Work comes out as even as the longest piece allows. Tokens are not looked at: micro-batches above
S_max, or above `max_pieces`, are made all the same, and `packer.simulate` counts them.
"""

from __future__ import annotations

import numpy as np

from packer.packing import kernels_karmarkar_karp
from packer.packing.backlog import Backlog, Filled, Stop
from packer.packing.config import PackingConfig
from packer.packing.greedy import limits_of, rest_of, start_state, steps_of, with_room
from packer.workload import Workload


def fill(backlog: Backlog, config: PackingConfig, workload: Workload, final: bool) -> Filled:
    """Make the steps whose arrivals are all there; see `packer.packing.backlog.Policy`."""
    tokens = backlog.pieces.tokens
    hand, state = with_room(backlog.hand, len(tokens)), start_state(backlog, tokens)
    row, row_work = kernels_karmarkar_karp.karmarkar_karp_steps(
        tokens,
        workload.of(tokens),
        backlog.pieces.position // config.intake_tokens,
        hand,
        limits_of(config, 0),
        state,
        final,
    )
    return Filled(
        steps=steps_of(backlog.pieces, row, row_work + workload.constant, backlog.step, config),
        backlog=rest_of(backlog, row, hand, np.empty(0, np.int64), state),
        stop=Stop.MORE,
    )
