"""CP strategies side by side on the paper's document lengths, as two policies pack them."""

from __future__ import annotations

from typing import Any

from jobs.simulation import fig3_documents
from packer.context_parallel import DIAGNOSTIC, STRATEGIES, CPOptions
from packer.context_parallel.simulate import MicroBatches, compare_strategies
from packer.lengths import fig3_lengths
from packer.packing.config import PackingConfig
from packer.packing.whole import Packing
from packer.simulate import simulate
from packer.workload import Workload

CONTEXT_LENGTH = 131_072
NUM_MICRO_BATCHES, STEPS = 4, 50
WORKLOAD = Workload(crossover=47_100)
POLICIES = ("concat", "lookahead")
CP_SIZES = (4, 8, 16)
INFINIBAND = 0.056
"""`kv_exchange` of the example in docs/CONTEXT_PARALLEL.md."""
EXPOSED = ("per_sequence", "per_document", "mixed", "adaptive")
"""Strategies that are compared where the exchange is exposed."""


def run() -> list[dict[str, Any]]:
    """A row a policy, `kv_exchange`, degree and strategy: `compare_strategies`, and `policy`.

    The same documents, seed 0; `lookahead` searches for excess, S_max 1.25 S.
    """
    rows: list[dict[str, Any]] = []

    def compare(row: dict[str, Any], packing: Packing) -> None:
        assert packing.steps is not None
        batches = MicroBatches(
            piece_tokens=packing.steps.pieces.tokens,
            row_offsets=packing.steps.row_offsets,
            max_tokens=packing.config.max_tokens,
        )
        for exchange, strategies in ((0.0, (*STRATEGIES, *DIAGNOSTIC)), (INFINIBAND, EXPOSED)):
            for found in compare_strategies(
                batches,
                cp_sizes=CP_SIZES,
                strategies=strategies,
                workload=WORKLOAD,
                options=CPOptions(kv_exchange=exchange),
            ):
                rows.append({"policy": row["policy"], "kv_exchange": exchange, **found})

    simulate(
        fig3_lengths(fig3_documents(STEPS, NUM_MICRO_BATCHES, CONTEXT_LENGTH), 0),
        POLICIES,
        PackingConfig(
            num_micro_batches=NUM_MICRO_BATCHES,
            context_length=CONTEXT_LENGTH,
            max_tokens=CONTEXT_LENGTH * 5 // 4,
        ),
        workload=WORKLOAD,
        steps=STEPS,
        look=compare,
    )
    return rows
