"""Each token is on one rank, ranks hold equally many, whatever the rows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from packer.context_parallel import STRATEGIES
from packer.workload import SCALE, Span, Workload
from tests import reference_cp as slow
from tests.packer.small_cp_plans import EVEN, HEAD_TAIL, balance, chunks, plan

ANY_ROW = st.lists(st.one_of(st.integers(1, 4), st.integers(1, 700)), min_size=1, max_size=12)


@st.composite
def any_rows(draw: st.DrawFn) -> tuple[list[list[int]], int]:
    """Rows of any lengths, or of lengths about the number of chunk slots."""
    cp_size = draw(st.integers(1, 9))
    near = st.lists(st.integers(1, 6 * cp_size), min_size=1, max_size=12)
    return draw(st.lists(st.one_of(ANY_ROW, near), min_size=1, max_size=4)), cp_size


@pytest.mark.parametrize("strategy", EVEN)
@given(any_rows())
@example(([[1]], 9))
@example(([[1] * 40], 4))
@example(([[1], [5000, 1, 1], [700] * 30], 3))
@settings(max_examples=100, deadline=None)
def test_plans_keep_the_law_and_say_what_they_cost(
    strategy: str, case: tuple[list[list[int]], int]
) -> None:
    rows, cp_size = case
    got = plan(rows, cp_size, strategy)
    assert got.num_rows == len(rows)
    for row, pieces in enumerate(rows):
        found = chunks(got, row)
        if strategy in HEAD_TAIL:
            assert found == slow.chunks_of(slow.TWINS[strategy](pieces, cp_size))
        assert got.predicted[row].tolist() == slow.predicted(found, cp_size, 1000)
        check_law(pieces, found, cp_size)
    plans = [chunks(got, row) for row in range(len(rows))]
    expected = slow.measures(rows, plans, cp_size, crossover=1000)
    assert balance(rows, got).as_dict() == pytest.approx(expected, rel=1e-12)


def check_law(pieces: Sequence[int], chunks: Sequence[slow.Chunk], cp_size: int) -> None:
    """Tiles every token once, within one token a rank, sorted, maximal, none empty."""
    covered = sorted((piece, i) for _, piece, start, stop in chunks for i in range(start, stop))
    assert covered == slow.tokens_of(pieces)
    loads = [sum(e - s for r, _, s, e in chunks if r == rank) for rank in range(cp_size)]
    assert max(loads) - min(loads) <= 1
    assert list(chunks) == sorted(chunks)
    assert all(start < stop for _, _, start, stop in chunks)
    ends = {(rank, piece, stop) for rank, piece, _, stop in chunks}
    assert not any((rank, piece, start) in ends for rank, piece, start, _ in chunks)


def test_every_length_to_three_rounds_of_slots_is_within_one_token_a_rank() -> None:
    joined = 0  # no slot has more than 3 tokens, so longer chunks were joined
    for cp_size in (2, 3, 4, 8):
        rows = [[length, 1, length] for length in range(1, 3 * 2 * cp_size + 1)]
        for strategy in EVEN:
            got = plan(rows, cp_size, strategy)
            for row, pieces in enumerate(rows):
                check_law(pieces, chunks(got, row), cp_size)
            joined += int(np.sum(got.stop - got.start > 3))
    assert joined > 0


def test_rows_do_not_depend_on_their_neighbours() -> None:
    rng = np.random.default_rng(0)
    rows = [rng.integers(1, 900, rng.integers(1, 30)).tolist() for _ in range(40)]
    for strategy in STRATEGIES:
        together = plan(rows, 6, strategy)
        for row in (0, 17, 39):
            alone = plan(rows[row : row + 1], 6, strategy)
            assert chunks(alone, 0) == chunks(together, row)
            assert np.array_equal(alone.predicted[0], together.predicted[row])


def test_per_document_is_even_where_per_sequence_is_not() -> None:
    rng = np.random.default_rng(4)
    rows = []
    for _ in range(60):  # one long piece at a random place among many short ones
        short = rng.integers(200, 2000, 20).tolist()
        rows.append([*short[:10], 40_000, *short[10:]] if rng.random() < 0.5 else [40_000, *short])
    by = {name: balance(rows, plan(rows, 8, name)) for name in HEAD_TAIL}
    assert by["per_document"].cp_attention < 1.2 < 1.4 < by["per_sequence"].cp_attention
    assert by["per_document"].kv_cut == 1.0 > by["per_sequence"].kv_cut
    assert by["per_document"].kv_needed > by["per_sequence"].kv_needed
    assert by["per_document"].tile_waste > by["per_sequence"].tile_waste


def test_the_longest_row_fits_the_arithmetic() -> None:
    for strategy in EVEN:
        got = plan([[1 << 26]], 2, strategy, Workload(crossover=1))
        assert got.predicted[0].tolist() == slow.predicted(chunks(got, 0), 2, crossover=1)
        assert got.predicted.min() > 1 << 58
        span = Span(mask="window", tokens=1 << 26, crossover=1)  # the same work by another name
        named = plan([[1 << 26]], 2, strategy, Workload(crossover=None, spans=(span,)))
        assert named.predicted.tolist() == got.predicted.tolist()
        none = plan([[1 << 26]], 2, strategy, Workload(crossover=None))
        assert none.predicted.tolist() == [[SCALE << 25] * 2]
