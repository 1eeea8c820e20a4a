"""What each rank of a CP plan has to do, part by part."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from packer.context_parallel.kernels import load_ranks
from packer.context_parallel.options import CPOptions, cost_of
from packer.context_parallel.plan import CPPlan
from packer.plan import Int64
from packer.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RankWork:
    """Loads of ranks, int64, (rows, cp_size) each; work in 1/256 of a linear-token equivalent."""

    tokens: Int64
    """Pads among them."""
    area: Int64
    """Tile-padded query-key pairs."""
    received: Int64
    """KV tokens that a rank needs and does not hold."""
    linear: Int64
    attention: Int64
    exchange: Int64

    @property
    def total(self) -> Int64:
        """What `CPPlan.predicted` says."""
        return self.linear + self.attention + self.exchange


def rank_work(
    plan: CPPlan,
    piece_tokens: np.ndarray,
    row_offsets: np.ndarray,
    workload: Workload,
    options: CPOptions,
) -> RankWork:
    """The work of ranks, worked out anew from the chunks.

    Args:
        plan: of these micro-batches; its `predicted` is not looked at.
        piece_tokens: integers (pieces,), as the plan was made from.
        row_offsets: integers (rows + 1,), likewise.
        workload: likewise.
        options: likewise.
    """
    tokens = np.ascontiguousarray(piece_tokens, dtype=np.int64)
    offsets = np.ascontiguousarray(row_offsets, dtype=np.int64)
    cost = cost_of(tokens, offsets, workload, options)
    loads = np.zeros((4, plan.num_rows, plan.cp_size), dtype=np.int64)
    chunks = (plan.cp_rank, plan.piece, plan.start, plan.stop)
    load_ranks(plan.row_offsets, *chunks, cost.grid, loads)
    held, area, weighted, received = loads
    none = np.zeros_like(held)
    return RankWork(
        tokens=held,
        area=area,
        received=received,
        linear=cost.predict(held, none, none),
        attention=cost.predict(none, weighted, none),
        exchange=cost.predict(none, none, received),
    )
