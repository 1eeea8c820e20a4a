"""Reading ahead: the same micro-batches, in the same order, and nothing left behind."""

from __future__ import annotations

import gc
import itertools
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from pipeline.shard.micro_batch import RankMicroBatch
from pipeline.shard.prefetch import ahead
from pipeline.shard.reader import Reader, open_shards
from pipeline.shard.tables import FormatError, NotInSet
from tests.fixture_contents import PARTS, SLOTS, STEPS
from tests.fixture_files import byte_ranges
from tests.fixture_set import make_set

FIELDS = ("tokens", "labels", "position_ids", "query_index", "key_index", "cu_seqlens_q")


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "prefetch"]


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def same(one: RankMicroBatch, other: RankMicroBatch) -> bool:
    assert (one.step, one.slot) == (other.step, other.slot)
    return all(np.array_equal(getattr(one, name), getattr(other, name)) for name in FIELDS)


@pytest.mark.parametrize("prefetch", [0, 1, 2, 50])
@pytest.mark.parametrize("cp_size", [1, 2])
@pytest.mark.parametrize("dp_size", [1, 2])
def test_batches_are_the_micro_batches_of_the_steps_in_turn(
    reader: Reader, dp_size: int, cp_size: int, prefetch: int
):
    first = 2
    for dp_rank, cp_rank in itertools.product(range(dp_size), range(cp_size)):
        rank = {"dp_rank": dp_rank, "dp_size": dp_size, "cp_rank": cp_rank, "cp_size": cp_size}
        found = list(reader.batches(first, **rank, prefetch=prefetch))
        plain = [b for step in range(first, STEPS) for b in reader.micro_batches(step, **rank)]
        assert len(found) == (STEPS - first) * SLOTS // dp_size
        assert all(map(same, found, plain))
    assert not threads()


def test_a_run_stopped_at_any_step_goes_on_with_exactly_the_rest(reader: Reader):
    whole = list(reader.batches(dp_rank=0, dp_size=1))
    for stop in range(STEPS + 1):
        rest = list(reader.batches(stop, dp_rank=0, dp_size=1))
        assert all(map(same, whole[stop * SLOTS :], rest))
        assert len(rest) == (STEPS - stop) * SLOTS


def test_what_the_set_does_not_allow_is_refused_before_anything_is_read(reader: Reader):
    with pytest.raises(NotInSet, match="dp_size 3 does not divide"):
        reader.batches(dp_rank=0, dp_size=3)
    with pytest.raises(NotInSet, match="no CP plan of degree 4"):
        reader.batches(dp_rank=0, dp_size=1, cp_size=4)
    for step in (-1, STEPS + 1):
        with pytest.raises(NotInSet, match=rf"step {step} is not in 0\.\.{STEPS}"):
            reader.batches(step, dp_rank=0, dp_size=1)
    with pytest.raises(ValueError, match="prefetch is -1"):
        reader.batches(dp_rank=0, dp_size=1, prefetch=-1)
    with pytest.raises(ValueError, match="0 items ahead"):
        ahead(iter([]), 0)
    assert not threads()


def test_damage_is_reported_at_the_micro_batch_that_needs_it_and_not_before(tmp_path: Path):
    directory = make_set().write(tmp_path)
    path = directory / "shards/00001.parquet"
    damaged = bytearray(path.read_bytes())
    damaged[byte_ranges(path)[1][2]] ^= 1  # the second row group: rows 4 and on
    path.write_bytes(damaged)
    bad = PARTS[0] + 2
    batches = open_shards(directory).batches(dp_rank=0, dp_size=1, prefetch=8)
    found = list(itertools.islice(batches, bad * SLOTS))
    assert [(b.step, b.slot) for b in found] == list(itertools.product(range(bad), range(SLOTS)))
    with pytest.raises(FormatError, match="row group 1"):
        next(batches)
    assert list(batches) == []
    assert not threads()


def test_an_iterator_that_is_dropped_leaves_no_thread(reader: Reader):
    for end in ("dropped", "closed", "never begun"):
        batches = reader.batches(dp_rank=0, dp_size=1, prefetch=1)
        if end != "never begun":
            next(batches)
            assert len(threads()) == 1
        if end == "closed":
            batches.close()  # pyright: ignore[reportAttributeAccessIssue]
        del batches
        gc.collect()
        assert not threads()


def test_the_reader_can_be_used_while_its_batches_are_read_ahead(reader: Reader):
    for batch in reader.batches(dp_rank=0, dp_size=1, prefetch=2):
        assert same(batch, list(reader.micro_batches(batch.step, dp_rank=0, dp_size=1))[batch.slot])


def test_no_more_is_read_ahead_than_was_asked_for():
    made: list[int] = []

    def numbers() -> Iterator[int]:
        for number in range(100):
            made.append(number)
            yield number

    iterator = ahead(numbers(), 3)
    assert next(iterator) == 0
    wait_for(lambda: len(made) == 5)  # the one that was taken, three, and one in the making
    time.sleep(0.02)
    assert len(made) == 5
    assert list(iterator) == list(range(1, 100))


def test_work_goes_on_while_the_consumer_computes():
    second_is_made = threading.Event()

    def source() -> Iterator[int]:
        yield 1
        second_is_made.set()
        yield 2

    iterator = ahead(source(), 1)
    assert next(iterator) == 1
    assert second_is_made.wait(20)  # nobody has asked for it
    assert list(iterator) == [2]


def test_an_error_comes_after_the_items_before_it_and_ends_the_iterator():
    def source() -> Iterator[int]:
        yield 1
        yield 2
        raise KeyError("three")

    iterator = ahead(source(), 5)
    assert [next(iterator), next(iterator)] == [1, 2]
    with pytest.raises(KeyError, match="three"):
        next(iterator)
    assert list(iterator) == []
    assert not threads()
