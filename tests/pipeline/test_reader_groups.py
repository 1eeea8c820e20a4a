"""Micro-batches that are made together: what each would be alone, and each for its holder only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.shard import rank_reader
from pipeline.shard.micro_batch import RankMicroBatch
from pipeline.shard.reader import Reader, open_plan, open_shards
from pipeline.shard.tables import FormatError
from tests.fixture_contents import SLOTS, STEPS, S, length_of
from tests.fixture_contents import document_tokens as tokens_of
from tests.fixture_files import byte_ranges
from tests.fixture_set import SetData, make_set

OPENED = (open_shards, open_plan)


@pytest.fixture(scope="module")
def data() -> SetData:
    return make_set()


@pytest.fixture(scope="module")
def directory(data: SetData, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return data.write(tmp_path_factory.mktemp("groups") / "set")


def slow_twin(data: SetData, step: int, slot: int, cp_rank: int, cp_size: int) -> dict[str, object]:
    """A rank's micro-batch token by token, from the documents and the rows as they were written."""
    plan = {name: [row for part in data.plan for row in part[name]] for name in data.plan[0]}
    cp = {name: [row for part in data.cp for row in part[name]] for name in data.cp[0]}
    place = step * SLOTS + slot
    bounds, pieces = plan["cu_seqlens"][place], len(plan["source"][place])
    chunks = [(piece, 0, bounds[piece + 1] - bounds[piece]) for piece in range(pieces)]
    if cp_size > 1:
        columns = (cp[name][place] for name in ("cp_rank", "piece", "start", "stop"))
        chunks = [row[1:] for row in zip(*columns, strict=True) if row[0] == cp_rank]
    tokens, labels, positions, queries, keys = [], [], [], [], []
    for piece, start, stop in chunks:
        source, doc_id = plan["source"][place][piece], plan["doc_id"][place][piece]
        length = length_of({"source": source, "doc_id": doc_id})
        document = [*tokens_of(source, doc_id, length), -100]
        for position in range(start, stop):
            at = plan["doc_start"][place][piece] + position
            tokens.append(document[at])
            labels.append(document[at + 1])
            positions.append(position)
            queries.append(bounds[piece] + position)
        keys += [bounds[piece] + key for key in range(stop)]
    return {
        "tokens": tokens,
        "labels": labels,
        "position_ids": positions,
        "query_index": queries,
        "key_index": keys,
        "cu_seqlens_q": [0, *np.cumsum([stop - start for _, start, stop in chunks])],
        "cu_seqlens_k": [0, *np.cumsum([stop for *_, stop in chunks])],
        "max_seqlen_q": max((stop - start for _, start, stop in chunks), default=0),
        "max_seqlen_k": max((stop for *_, stop in chunks), default=0),
        "workload": plan["workload"][place],
    }


def check(view: RankMicroBatch, expected: dict[str, object]) -> None:
    for name, values in expected.items():
        assert np.array_equal(np.asarray(getattr(view, name)), np.asarray(values)), name


PLACES = st.lists(
    st.tuples(st.integers(0, STEPS - 1), st.permutations(range(SLOTS)), st.integers(1, SLOTS)),
    min_size=1,
    max_size=5,
)


@pytest.mark.parametrize("open_set", OPENED)
@settings(max_examples=40, deadline=None)
@given(wanted=PLACES, ranks=st.sampled_from([(0, 1), (0, 2), (1, 2)]))
def test_any_order_of_steps_and_slots_gives_what_the_slow_twin_gives_and_it_stays(
    data: SetData,
    directory: Path,
    open_set: Callable[[Path], Reader],
    wanted: Sequence[tuple[int, Sequence[int], int]],
    ranks: tuple[int, int],
):
    reader = open_set(directory)
    held = [
        view for step, slots, count in wanted for view in reader._views(step, slots[:count], *ranks)
    ]
    places = [(step, slot) for step, slots, count in wanted for slot in slots[:count]]
    assert [(view.step, view.slot) for view in held] == places
    for view in held:  # all of them were held while the later ones were made
        check(view, slow_twin(data, view.step, view.slot, *ranks))


@pytest.mark.parametrize("open_set", OPENED)
def test_a_write_to_one_micro_batch_is_seen_in_no_other(
    directory: Path, open_set: Callable[[Path], Reader]
):
    reader = open_set(directory)
    together = reader._views(0, [0, 1], 0, 1)
    alone = reader._views(0, [1], 0, 1)[0]
    names = ("tokens", "labels", "position_ids", "query_starts", "cu_seqlens_q", "cu_seqlens_k")
    for name in names:
        getattr(together[0], name)[:] = -7
    for name in names:
        assert np.array_equal(getattr(together[1], name), getattr(alone, name)), name
    again = reader._views(0, [0], 0, 1)[0]
    assert not any((getattr(again, name) == -7).any() for name in names)


@pytest.mark.parametrize("open_set", OPENED)
@pytest.mark.parametrize("tokens", [1, S, 2 * S])
def test_how_many_are_made_together_changes_nothing(
    directory: Path,
    monkeypatch: pytest.MonkeyPatch,
    open_set: Callable[[Path], Reader],
    tokens: int,
):
    reader = open_set(directory)
    expected = [reader._views(step, [slot], 0, 1)[0] for step in range(STEPS) for slot in (0, 1)]
    monkeypatch.setattr(rank_reader, "TOGETHER_TOKENS", tokens)
    for prefetch in (0, 1, 3):
        found = list(reader.batches(dp_rank=0, dp_size=1, prefetch=prefetch))
        for view, other in zip(found, expected, strict=True):
            assert (view.step, view.slot) == (other.step, other.slot)
            assert np.array_equal(view.tokens, other.tokens)
            assert np.array_equal(view.labels, other.labels)


def test_damage_to_one_of_a_group_leaves_those_before_it(tmp_path: Path):
    data = make_set()
    for table in data.shards:  # a row of tokens that does not fit where the first slot's does
        table["slot"][1] = 5
    reader = open_shards(data.write(tmp_path))
    views = reader.micro_batches(0, dp_rank=0, dp_size=1)
    assert next(views).slot == 0
    with pytest.raises(FormatError, match="row 1 is step 0, slot 5, must be step 0, slot 1"):
        next(views)


def test_damage_to_a_row_group_is_named_when_a_group_needs_it(tmp_path: Path):
    directory = make_set().write(tmp_path)
    path = directory / "shards/00000.parquet"
    damaged = bytearray(path.read_bytes())
    damaged[byte_ranges(path)[1][2]] ^= 1
    path.write_bytes(damaged)
    with pytest.raises(FormatError, match="row group 1"):
        list(open_shards(directory).micro_batches(2, dp_rank=0, dp_size=1))
