"""`adaptive`: for each micro-batch the plan whose slowest rank is predicted to finish first."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from packer.context_parallel.plan import CPPlan


def least_time(plans: Sequence[CPPlan]) -> CPPlan:
    """The best row of several plans of the same micro-batches; of equals the first plan's.

    A row names the strategy that made it, and `considered` keeps what each was predicted to take
    (WLB-LLM, arXiv 2503.17924, section 5.3, chooses between two so, while it trains).
    """
    slowest = np.stack([plan.predicted.max(axis=1, initial=0) for plan in plans], axis=1)
    choice = np.argmin(slowest, axis=1)
    rows = np.arange(len(choice))
    counts = np.stack([np.diff(plan.row_offsets) for plan in plans])[choice, rows]
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
    before = np.cumsum([0, *(len(plan.start) for plan in plans)])
    first = np.stack([plan.row_offsets[:-1] for plan in plans])[choice, rows] + before[choice]
    chunk = np.arange(offsets[-1]) + np.repeat(first - offsets[:-1], counts)

    def chosen(name: str) -> np.ndarray:
        return np.concatenate([getattr(plan, name) for plan in plans])[chunk]

    return CPPlan(
        cp_size=plans[0].cp_size,
        strategy=tuple(plans[which].strategy[row] for row, which in enumerate(choice)),
        row_offsets=offsets,
        cp_rank=chosen("cp_rank"),
        piece=chosen("piece"),
        start=chosen("start"),
        stop=chosen("stop"),
        predicted=np.stack([plan.predicted for plan in plans])[choice, rows],
        considered=slowest,
    )
