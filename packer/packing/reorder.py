"""`reorder`: balance inside a step; nothing moves to another step but what does not fit.

Step t places the pieces that arrive in it and what step t - 1 could not place, each into the
micro-batch of least work that has room: the long ones first, then what waited, then the rest by
falling work. Every micro-batch gets a piece, since an empty one has the least work.

Nothing runs early, and late only what found no room: on the lengths of WLB-LLM's Figure 3 nothing
at S_max = 1.25 S, and 0.6% of the tokens, by one step, at S_max = S (N = 16). The price is the
largest piece: a step's heaviest micro-batch is at least as heavy as that. Sorted slots dealt over
the ranks hide it where a rank runs several micro-batches; where pipeline stages wait for the
heaviest one, `wlb` does better.
"""

from __future__ import annotations

from packer.packing.backlog import Backlog, Filled
from packer.packing.config import PackingConfig
from packer.packing.greedy import fill_greedily
from packer.workload import Workload


def fill(backlog: Backlog, config: PackingConfig, workload: Workload, final: bool) -> Filled:
    """Make the whole steps that a backlog allows; see `packer.packing.backlog.Policy`."""
    return fill_greedily(backlog, config, workload, final=final, thresholds=(), patience=1)
