"""Law 4: chunks tile every micro-batch. What the packer's tests and readers say of other chunks."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from pipeline.shard.exchange import rank_exchange
from tests import reference_cp as slow
from tests.laws.noticed import noticed
from tests.micro_batches import boundaries_of, chunks
from tests.packer.test_cp_laws import check_law

PIECES = (8, 3, 5)
PLAN = slow.chunks_of(slow.TWINS["per_document"](PIECES, 2))

Plan = list[slow.Chunk]


def lose(plan: Plan) -> Plan:
    return plan[:-1]


def double(plan: Plan) -> Plan:
    """Both ranks hold the first chunk."""
    _, piece, start, stop = plan[0]
    return sorted([*plan, (1, piece, start, stop)])


def give_all(plan: Plan) -> Plan:
    return [(0, piece, 0, length) for piece, length in enumerate(PIECES)]


def split(plan: Plan) -> Plan:
    """A chunk as two that touch."""
    at = next(i for i, chunk in enumerate(plan) if chunk[3] - chunk[2] > 1)
    rank, piece, start, stop = plan[at]
    return sorted([*plan[:at], *plan[at + 1 :], (rank, piece, start, start + 1),
                   (rank, piece, start + 1, stop)])  # fmt: skip


@pytest.mark.parametrize("break_plan", [lose, double, give_all, split])
def test_chunks_that_do_not_tile_are_noticed_by_the_packers_tests(
    break_plan: Callable[[Plan], Plan],
) -> None:
    check_law(PIECES, PLAN, 2)
    with noticed():
        check_law(PIECES, break_plan(PLAN), 2)


def test_chunks_that_leave_keys_out_are_refused_by_readers() -> None:
    cu_seqlens = np.array(boundaries_of(PIECES), np.int32)
    for rank in range(2):
        rank_exchange(cu_seqlens, chunks(*PLAN), rank, 2)
    first = next(chunk for chunk in PLAN if chunk[1] == 0 and chunk[2] == 0)
    without = [chunk for chunk in PLAN if chunk != first]
    with pytest.raises(ValueError, match="do not hold every token once; run steelyard verify"):
        rank_exchange(cu_seqlens, chunks(*without), 1 - first[0], 2)
