"""Mixed plans: what stays whole, how the rest is peeled, and that nothing much better exists."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from packer.context_parallel import DIAGNOSTIC, STRATEGIES
from packer.context_parallel.kernels import TILE, chunk_cost
from packer.context_parallel.kernels_peel import heads_of
from packer.throughput import FLAT
from packer.workload import SCALE, Workload
from tests import reference_cp as slow
from tests.packer.small_cp_plans import AREA, FIG3_CROSSOVER, balance, chunks, picture, plan, ragged
from tests.reference_cp_oracle import least_slowest_area


def tiles(*pieces: int) -> list[int]:
    return [piece * TILE for piece in pieces]


def tile_picture(strategy: str, pieces: list[int], cp_size: int) -> str:
    """Each tile's rank, of pieces given in tiles."""
    got = plan([tiles(*pieces)], cp_size, strategy)
    return " ".join(
        word[::TILE] for word in picture(got, 0, tiles(*pieces)).split()
    )  # a tile is all one rank's


def test_a_long_piece_is_peeled_and_short_ones_stay_whole() -> None:
    # 20 tiles on two ranks: 1 + .. + 16 = 136 and two whole pieces of 2 tiles, 3 each.
    assert tile_picture("mixed", [2, 16, 2], 2) == "00 0000111111110000 11"


def test_what_one_rank_has_whole_it_has_less_of_the_long_piece() -> None:
    # Rank 0 has 10 for its 4 whole tiles; 110 - 10 remain, so it peels 2 tiles of about 50.
    got = plan([tiles(4, 8)], 2, "mixed")
    areas = slow_areas(got, 2)
    assert areas == [23, 23]
    assert tile_picture("mixed", [4, 8], 2) in ("0000 11111001", "1111 00000110")


def test_odd_tokens_cost_next_to_nothing() -> None:
    """Ends go to the outermost rank, broken tiles to the beginning of the long piece."""
    pieces = [300, 5001]
    got = plan([pieces], 2, "mixed")
    broken = [
        (start, stop)
        for _, piece, start, stop in chunks(got, 0)
        if (start % TILE or stop % TILE) and stop != pieces[piece]
    ]
    assert all(start <= 2 * TILE for start, stop in broken)
    areas = slow_areas(got, 2)
    whole = sum(slow.tile_area(0, d) for d in pieces) / TILE / TILE
    assert sum(areas) <= whole + 4
    assert max(areas) <= 1.01 * whole / 2 + 4


def slow_areas(got, cp_size: int) -> list[int]:
    """Of the first row's ranks, in tiles."""
    return [
        sum(slow.tile_area(start, stop) for rank, _, start, stop in chunks(got, 0) if rank == r)
        // TILE**2
        for r in range(cp_size)
    ]


def test_aligned_cuts_every_piece_that_has_tiles_for_all() -> None:
    assert tile_picture("per_document_aligned", [4, 4], 2) == "0110 0110"
    got = plan([tiles(4, 3)], 2, "per_document_aligned")
    assert len({rank for rank, piece, _, _ in chunks(got, 0) if piece == 0}) == 2


def test_padding_is_numbered_over_the_micro_batch() -> None:
    # Multiples of 4: pieces of 5 and 3 tokens have 3 and 1 pad tokens; parts of 2 and of 1 token.
    got = plan([[5, 3]], 2, "padded_head_tail")
    assert chunks(got, 0) == [
        (0, 0, 0, 2), (0, -1, 1, 3), (0, 1, 0, 1), (0, -1, 3, 4),
        (1, 0, 2, 5), (1, -1, 0, 1), (1, 1, 1, 3),
    ]  # fmt: skip
    assert got.predicted[0].tolist() == [
        6 * SCALE + 2 * SCALE * 2 * TILE**2 // 1000,
        6 * SCALE + 2 * SCALE * 2 * TILE**2 // 1000,
    ]


def test_padding_beyond_the_bound_is_refused() -> None:
    options = replace(AREA, max_tokens=12)
    plan([[5, 3]], 2, "padded_head_tail", options=options)
    with pytest.raises(
        ValueError, match=r"1 of 2 micro-batches exceed 12 .* 4; the largest has 16"
    ):
        plan([[5, 3], [5, 3, 1]], 2, "padded_head_tail", options=options)
    with pytest.raises(ValueError, match="multiples of 12; the largest has 24"):
        plan([[5, 3]], 2, "padded_head_tail", options=replace(options, pad_to=6))


def test_whole_documents_are_placed_by_time() -> None:
    # 9000 + 81,000 and 8000 + 64,000 of attention, then the shorter ones to where less is.
    got = plan([[9000, 8000, 3000, 1]], 2, "whole_document")
    assert chunks(got, 0) == [(0, 0, 0, 9000), (1, 1, 0, 8000), (1, 2, 0, 3000), (1, 3, 0, 1)]
    assert set(DIAGNOSTIC) == {"whole_document"}
    assert not set(DIAGNOSTIC) & set(STRATEGIES)


@st.composite
def tiny(draw: st.DrawFn) -> tuple[list[int], int]:
    """Pieces of at most 16 tiles that divide over the ranks."""
    cp_size = draw(st.integers(2, 4))
    total = cp_size * draw(st.integers(1, 16 // cp_size))
    pieces: list[int] = []
    while sum(pieces) < total:
        pieces.append(draw(st.integers(1, total - sum(pieces))))
    return pieces, cp_size


@given(tiny())
@example(([6, 3], 3))
@example(([14, 2], 4))
@settings(max_examples=150, deadline=None)
def test_tiny_micro_batches_come_within_two_percent_of_the_best(
    case: tuple[list[int], int],
) -> None:
    pieces, cp_size = case
    got = plan([tiles(*pieces)], cp_size, "mixed", Workload(crossover=1024))
    best = least_slowest_area(pieces, cp_size)
    assert max(slow_areas(got, cp_size)) * TILE**2 >= best
    time = sum(pieces) // cp_size * TILE + 2 * best / 1024
    assert got.predicted.max() / SCALE <= 1.02 * time


def test_the_oracle_by_hand() -> None:
    assert least_slowest_area([4], 2) == 5 * TILE**2  # 1 + 4 and 2 + 3
    assert least_slowest_area([3, 1], 2) == 4 * TILE**2  # 3 + 1 and 2 + 1
    with pytest.raises(ValueError, match="3 tiles do not divide over 2 ranks"):
        least_slowest_area([3], 2)


@given(
    low=st.integers(0, 30),
    tiles=st.integers(1, 20),
    middle=st.integers(0, 30),
    odd=st.integers(0, TILE - 1),
    share=st.floats(-0.2, 1.2),
)
@settings(max_examples=200, deadline=None)
def test_heads_are_as_many_as_come_closest(
    low: int, tiles: int, middle: int, odd: int, share: float
) -> None:
    high = (low + tiles + middle) * TILE + odd
    grid = FLAT.table()

    def cost(heads: int) -> int:
        start = high // TILE * TILE - (tiles - heads) * TILE
        tail = chunk_cost(start, high, grid) if high > start else 0
        return tail + (chunk_cost(low * TILE, (low + heads) * TILE, grid) if heads else 0)

    want = int(cost(tiles) + share * (cost(0) - cost(tiles)))
    found = heads_of(low * TILE, high, tiles, want, grid) if middle else 0
    if middle:
        best = min(abs(cost(heads) - want) for heads in range(tiles + 1))
        assert abs(cost(found) - want) == best


def test_rows_of_no_attention_and_of_dear_attention_are_planned() -> None:
    rows = [[5000, 3], [128] * 9, [1]]
    for workload in (Workload(crossover=None), Workload(crossover=1)):
        for price in (0.0, 64.0):
            got = plan(rows, 3, "mixed", workload, replace(AREA, kv_exchange=price))
            tokens = np.zeros((3, 3), int)
            np.add.at(tokens, (np.repeat(range(3), np.diff(got.row_offsets)), got.cp_rank),
                      got.stop - got.start)  # fmt: skip
            assert (np.ptp(tokens, axis=1) <= 1).all()
            assert tokens.sum(axis=1).tolist() == [5003, 1152, 1]


def test_a_micro_batch_of_thousands_of_crumbs() -> None:
    rng = np.random.default_rng(3)
    rows = [rng.integers(1, 40, 5000).tolist()]
    got = plan(rows, 64, "mixed")
    assert balance(rows, got).kv_cut < 0.05
    assert ragged(rows)[0].sum() == (got.stop - got.start).sum()


def test_long_micro_batches_come_out_as_even_as_short_ones() -> None:
    """Costs times tiles would not fit 64 bits here, where a part of them is taken."""
    tokens = [1 << 24, 3 << 22, 5 << 21, 9 << 20, 1 << 22]
    got = plan([tokens], 4, "per_document_aligned", FIG3_CROSSOVER)
    assert got.predicted.max() / got.predicted.mean() < 1.001
