"""`wlb`: Algorithm 1 of WLB-LLM (arXiv 2503.17924) with its gaps closed.

Long pieces, the outliers, wait in queues by length until a queue holds N of them; then each
micro-batch gets one. What remains of the work evens out with short pieces, since a micro-batch may
hold up to S_max tokens: many where the work is light, few where it is heavy. Thresholds too close
together, or too low, balance better and make pieces wait longer; `packer.tuning` chooses them.

Beside the printed algorithm (`packer.packing.printed`):

- a piece fits where it fills a micro-batch to S_max exactly (<= for <), so that S_max = S works;
- a step takes in A tokens, and none while what remained exceeds A; where intake fell behind, it
  catches up when the hand is down to A again;
- an outlier that nears its displacement bound goes without waiting for its peers, and first;
- at the stream's end the queues empty, and steps are made while a whole one remains;
- a piece goes to the micro-batch of least work among all that have room for it; the printed rule
  tries two, the one of least work and the shortest;
- what remained is sorted in with the new pieces by falling work, instead of going first as it is.

The last two are choices, made by measuring. On the lengths of the paper's Figure 3 (crossover
47,100, one queue from 9/16 S, mean of two seeds) the excess at N = 16 was 0.161 at S_max = 1.25 S
and 0.156 at 1.5 S; with the printed rule for the micro-batch 0.168 and 0.162, with what remained
going first 0.178 and 0.163, with both as printed 0.182 and 0.169; at N = 4 the order was the same.
The displacement did not change by a thousandth.
"""

from __future__ import annotations

from packer.packing.backlog import Backlog, Filled, release_age
from packer.packing.config import PackingConfig
from packer.packing.greedy import fill_greedily
from packer.workload import Workload


def fill(backlog: Backlog, config: PackingConfig, workload: Workload, final: bool) -> Filled:
    """Make the whole steps that a backlog allows; see `packer.packing.backlog.Policy`."""
    return fill_greedily(
        backlog,
        config,
        workload,
        final=final,
        thresholds=config.thresholds,
        patience=release_age(config),
    )
