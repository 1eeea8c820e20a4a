"""Rules by which ranks order their micro-batches."""

from __future__ import annotations

import pytest

from packer.orders import ORDERS, run_order, slots_of_rank

PICTURES = {
    "identity": [0, 1, 2, 3, 4, 5],
    "middle": [5, 3, 1, 0, 2, 4],
    "light_first_1": [5, 0, 1, 2, 3, 4],
    "light_first_2": [5, 4, 0, 1, 2, 3],
    "light_first_4": [5, 4, 3, 2, 0, 1],
    "light_first_8": [5, 4, 3, 2, 1, 0],
    "light_first_16": [5, 4, 3, 2, 1, 0],
    "light_last_1": [4, 3, 2, 1, 0, 5],
    "light_last_2": [3, 2, 1, 0, 4, 5],
    "light_last_4": [1, 0, 2, 3, 4, 5],
    "light_last_8": [0, 1, 2, 3, 4, 5],
    "light_last_16": [0, 1, 2, 3, 4, 5],
}


def test_every_rule_has_its_picture() -> None:
    assert {rule: run_order(rule, 6) for rule in ORDERS} == PICTURES


@pytest.mark.parametrize("rule", ORDERS)
def test_a_rule_runs_every_micro_batch_once(rule: str) -> None:
    for num in range(40):
        assert sorted(run_order(rule, num)) == [*range(num)]


def test_ranks_run_like_with_like_under_every_rule() -> None:
    for rule in ORDERS:
        ranks = [slots_of_rank(rule, dp_rank=rank, dp_size=3, num=5) for rank in range(3)]
        for together in zip(*ranks, strict=True):  # three neighbouring slots
            assert max(together) - min(together) == 2
            assert min(together) % 3 == 0
        assert sorted(slot for mine in ranks for slot in mine) == [*range(15)]


def test_a_rule_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="'zigzag'; known: identity, middle, light_first_1"):
        run_order("zigzag", 3)
