"""Strategies side by side, and what ranks have to do part by part."""

from __future__ import annotations

import numpy as np
import pytest

from packer.context_parallel import DIAGNOSTIC, STRATEGIES, CPOptions, plan_context_parallel
from packer.context_parallel import simulate as module
from packer.context_parallel.simulate import MicroBatches, compare_strategies
from packer.context_parallel.work import rank_work
from packer.throughput import FLAT
from packer.workload import Workload

WORKLOAD = Workload(crossover=1000)
PIECES = np.array([900, 40, 40, 20, 1000, 1, 300, 300, 399], dtype=np.int64)
OFFSETS = np.array([0, 4, 5, 9], dtype=np.int64)
BATCHES = MicroBatches(piece_tokens=PIECES, row_offsets=OFFSETS, max_tokens=1000)
KNOWN = (*STRATEGIES, *DIAGNOSTIC)


def test_every_strategy_has_its_figures_at_every_degree(monkeypatch: pytest.MonkeyPatch) -> None:
    def compared() -> list[dict[str, object]]:
        return compare_strategies(
            BATCHES, cp_sizes=(2, 3), strategies=KNOWN, workload=WORKLOAD, options=CPOptions()
        )

    rows = compared()
    assert [(row["cp_size"], row["strategy"]) for row in rows] == [
        (cp_size, name) for cp_size in (2, 3) for name in KNOWN
    ]
    for row in rows:
        over = {2: 1, 3: 3}[row["cp_size"]] if row["strategy"] == "padded_head_tail" else 0
        assert row["over_max_tokens"] == over
        assert row["micro_batches"] == 3
        if row["strategy"] == "adaptive":
            assert list(row["chosen"]) == ["per_sequence", "per_document", "mixed"]
            assert sum(row["chosen"].values()) == 3
        else:
            assert row["chosen"] is None
    monkeypatch.setattr(module, "ROWS_AT_ONCE", 2)
    timed = {"plans_per_s": 0.0}
    assert [row | timed for row in compared()] == [row | timed for row in rows]


@pytest.mark.parametrize("strategy", KNOWN)
def test_the_parts_of_a_ranks_work_add_up_to_what_the_plan_predicts(strategy: str) -> None:
    for options in (CPOptions(), CPOptions(kv_exchange=0.3, throughput=FLAT)):
        plan = plan_context_parallel(
            PIECES, OFFSETS, cp_size=3, strategy=strategy, workload=WORKLOAD, options=options
        )
        work = rank_work(plan, PIECES, OFFSETS, WORKLOAD, options)
        assert np.array_equal(work.total, plan.predicted)
        assert work.tokens.sum() >= PIECES.sum()
        assert np.any(work.exchange) == (options.kv_exchange > 0 and strategy != "whole_document")


def test_work_of_a_picture() -> None:
    """Rank 0 has tokens 0..99 and 300..399 of one piece of 400, rank 1 the middle."""
    options = CPOptions(kv_exchange=0.5, throughput=FLAT)
    plan = plan_context_parallel(
        np.array([400]),
        np.array([0, 1]),
        cp_size=2,
        strategy="per_document",
        workload=WORKLOAD,
        options=options,
    )
    work = rank_work(plan, np.array([400]), np.array([0, 1]), WORKLOAD, options)
    tile = 128 * 128
    assert work.tokens.tolist() == [[200, 200]]
    assert work.area.tolist() == [[5 * tile, 5 * tile]]  # 1 + 4, and 2 + 3 of rows 100 and 228
    assert work.received.tolist() == [[200, 100]]
    assert work.linear.tolist() == [[200 * 256] * 2]
    assert work.attention.tolist() == [[(512 * 5 * tile + 500) // 1000] * 2]
    assert work.exchange.tolist() == [[200 * 128, 100 * 128]]
