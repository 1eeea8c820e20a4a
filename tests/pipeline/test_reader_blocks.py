"""Memory is used again when nobody can see it, and not a moment earlier."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from pipeline.shard.blocks import Blocks
from pipeline.shard.rank_views import rank_view
from tests.micro_batches import micro_batch


def address(array: np.ndarray) -> int:
    return array.__array_interface__["data"][0]


def test_a_block_that_was_dropped_is_taken_again_also_for_less():
    blocks = Blocks()
    first = blocks.take((3, 1000), "int64")
    place = address(first)
    assert first.shape == (3, 1000)
    del first
    again = blocks.take((500,), "uint16")
    assert (address(again), again.shape, again.dtype) == (place, (500,), np.uint16)


MADE: dict[str, Callable[[np.ndarray], Any]] = {
    "array": lambda array: array,
    "row": lambda array: array[1],
    "part": lambda array: array[2, 10:20],
    "view": lambda array: array.view(np.uint8).reshape(-1)[8:],
    "memory": memoryview,
    "tensor": lambda array: pytest.importorskip("torch").from_numpy(array[1])[3:],
}


@pytest.mark.parametrize("kind", MADE)
def test_whatever_is_made_of_a_block_holds_it(kind: str):
    blocks = Blocks()
    array = blocks.take((3, 1000), "int64")
    array[:] = 7
    place = address(array)
    held = MADE[kind](array)
    del array
    other = blocks.take((3, 1000), "int64")
    other[:] = 8
    assert address(other) != place
    assert 8 not in np.asarray(held)
    del held
    assert address(blocks.take((3, 1000), "int64")) == place


def test_only_a_few_blocks_are_kept_and_those_the_largest():
    blocks = Blocks(kept=3)
    held = [blocks.take((size,), "uint8") for size in (10, 50, 20, 40, 30)]
    for number, array in enumerate(held):
        array[:] = number
    assert [len(block) for block in blocks._blocks] == [30, 40, 50]
    assert [set(array.tolist()) for array in held] == [{number} for number in range(5)]


def test_threads_never_share_a_block():
    blocks, failed = Blocks(), []

    def work(number: int) -> None:
        for _ in range(300):
            array = blocks.take((2000,), "int64")
            array[:] = number
            if not (array == number).all():
                failed.append(number)

    workers = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not failed


def test_views_of_micro_batches_stay_as_they_are_while_others_are_made():
    batches = [micro_batch([n] * 50, [0, 20, 50], [n, -100]) for n in range(40)]
    views = [rank_view(batch, None, 0, 1) for batch in batches]
    for number, view in enumerate(views):
        assert view.tokens.tolist() == [number] * 50
        assert view.labels.tolist() == [number] * 49 + [-100]
        assert view.position_ids.tolist() == [*range(20), *range(30)]
