"""Each token is on one rank, ranks hold equally many, and the plan says what that costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from packer.context_parallel import STRATEGIES, CPOptions, CPPlan, plan_context_parallel
from packer.context_parallel.kernels import tile_area
from packer.context_parallel.measures import CPBalance, CPMeter
from packer.throughput import FLAT, Throughput
from packer.workload import SCALE, Span, Workload
from tests import reference_cp as slow

WORKLOAD = Workload(crossover=1000)
AREA = CPOptions(throughput=FLAT)
"""Time is area, so that figures can be worked out by hand."""
HEAD_TAIL = ("per_sequence", "per_document")
EVEN = tuple(name for name in STRATEGIES if name != "padded_head_tail")
"""Strategies that leave every token, and no more, on ranks that hold equally many."""
Rows = Sequence[Sequence[int]]


def ragged(rows: Rows) -> tuple[np.ndarray, np.ndarray]:
    """Rows as read-only values and offsets, the way a file's map hands them over."""
    tokens = np.array([length for row in rows for length in row], dtype=np.int64)
    offsets = np.cumsum([0] + [len(row) for row in rows], dtype=np.int64)
    tokens.flags.writeable = offsets.flags.writeable = False
    return tokens, offsets


def plan(
    rows: Rows,
    cp_size: int,
    strategy: str,
    workload: Workload = WORKLOAD,
    options: CPOptions = AREA,
) -> CPPlan:
    return plan_context_parallel(
        *ragged(rows), cp_size=cp_size, strategy=strategy, workload=workload, options=options
    )


def chunks(plan: CPPlan, row: int) -> list[slow.Chunk]:
    one = plan.rows(row, row + 1)
    columns = (one.cp_rank, one.piece, one.start, one.stop)
    return list(zip(*(column.tolist() for column in columns), strict=True))


def balance(rows: Rows, plan: CPPlan) -> CPBalance:
    meter = CPMeter()
    meter.add(plan, *ragged(rows))
    return meter.result()


def picture(plan: CPPlan, row: int, pieces: Sequence[int]) -> str:
    """Each token's rank, pieces apart: "0110 000111111000"."""
    owners = [["."] * length for length in pieces]
    for rank, piece, start, stop in chunks(plan, row):
        for i in range(start, stop):
            assert owners[piece][i] == ".", "a token on two ranks"
            owners[piece][i] = str(rank)
    return " ".join("".join(owner) for owner in owners)


# --- pictures ------------------------------------------------------------------------------------


def test_per_document_gives_every_rank_a_mirrored_pair_of_every_piece() -> None:
    got = plan([[4, 12]], 2, "per_document")
    assert picture(got, 0, [4, 12]) == "0110 000111111000"
    assert chunks(got, 0) == [
        (0, 0, 0, 1), (0, 0, 3, 4), (0, 1, 0, 3), (0, 1, 9, 12),
        (1, 0, 1, 3), (1, 1, 3, 9),
    ]  # fmt: skip
    # Exact causal work: rank 0 has rows 1, 4 and 1..3, 10..12; rank 1 has 2, 3 and 4..9.
    work = [sum(stop * (stop + 1) - start * (start + 1) for r, _, start, stop in chunks(got, 0)
                if r == rank) // 2 for rank in range(2)]  # fmt: skip
    assert work == [44, 44]


def test_per_sequence_gives_every_rank_a_mirrored_pair_of_the_sequence() -> None:
    got = plan([[4, 12]], 2, "per_sequence")
    assert picture(got, 0, [4, 12]) == "0000 111111110000"
    assert chunks(got, 0) == [(0, 0, 0, 4), (0, 1, 8, 12), (1, 1, 0, 8)]
    work = [10 + 9 + 10 + 11 + 12, sum(range(1, 9))]
    assert work == [52, 36]  # the mirrored pair is not even where pieces begin anew


def test_per_document_deals_the_remainder_on_from_piece_to_piece() -> None:
    # Slots 0 1 2 3 belong to ranks 0 1 1 0. Three pieces of 5: the odd token goes to slots 0, 1, 2.
    assert picture(plan([[5, 5, 5]], 2, "per_document"), 0, [5, 5, 5]) == "00110 01110 01110"
    # 7 = 4 + 3 takes slots 0, 1, 2, so the next 7 goes on with slots 3, 0, 1.
    assert picture(plan([[7, 7]], 2, "per_document"), 0, [7, 7]) == "0011110 0011100"


def test_each_micro_batch_starts_its_own_deal() -> None:
    together = plan([[1], [1], [1, 1, 1]], 2, "per_document")
    assert [picture(together, row, pieces) for row, pieces in enumerate([[1], [1], [1, 1, 1]])] == [
        "0",
        "0",
        "0 1 1",
    ]


def test_fewer_tokens_than_ranks_leave_ranks_without_work() -> None:
    for strategy in EVEN:
        got = plan([[2, 1]], 8, strategy)
        assert picture(got, 0, [2, 1]) in ("01 2", "12 0")
        assert (got.predicted[0] > 0).tolist() == [True] * 3 + [False] * 5


def test_one_rank_holds_whole_pieces() -> None:
    for strategy in EVEN:
        assert chunks(plan([[300, 1, 7]], 1, strategy), 0) == [
            (0, 0, 0, 300), (0, 1, 0, 1), (0, 2, 0, 7)
        ]  # fmt: skip


def test_tiles_begin_at_the_chunk_and_are_padded_to_128_keys() -> None:
    assert tile_area(0, 1) == 128 * 128
    assert tile_area(0, 128) == 128 * 128
    assert tile_area(0, 129) == 128 * (128 + 256)
    # Rows 100..227 end in key tile 2, rows 228..299 in key tile 3.
    assert tile_area(100, 300) == 128 * (256 + 384)
    assert tile_area(127, 129) == 128 * 256


def test_predicted_work_is_tokens_plus_attention_in_units_of_workload() -> None:
    # At cp 2 rank 0 has tokens 0..255 and 768..1023, rank 1 the middle 512.
    got = plan([[1024]], 2, "per_document", Workload(crossover=4096))
    outer = 128 * (128 + 256) + 128 * (896 + 1024)
    middle = 128 * (384 + 512 + 640 + 768)
    assert outer == middle  # aligned to tiles, the mirrored pair is exactly even
    assert got.predicted.tolist() == [[SCALE * 512 + 2 * SCALE * outer // 4096] * 2]
    # Together they are what the piece costs, but for the tiles on the diagonal.
    whole = int(Workload(crossover=4096).of(np.array([1024]))[0])
    assert whole < got.predicted.sum() < 1.05 * whole


WINDOWED = Workload(crossover=8192, spans=(Span(mask="window", tokens=512, crossover=1024),))


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize(
    "workload",
    [WINDOWED, replace(WINDOWED, crossover=None), Workload(crossover=None)],
    ids=["windows and all", "windows", "no attention"],
)
def test_predicted_work_of_any_model_adds_up_to_its_pieces(
    strategy: str, workload: Workload
) -> None:
    rows = [[16_384], [4096] * 8, [64, 8192, 100, 3000]]
    got = plan(rows, 4, strategy, workload)
    for predicted, pieces in zip(got.predicted, rows, strict=True):
        whole = int(workload.of(np.array(pieces)).sum())
        assert whole <= predicted.sum() + 4 <= 1.1 * whole
    if workload.crossover is None and not workload.spans:
        assert np.all(got.predicted % SCALE == 0)  # tokens and nothing else


def test_a_micro_batch_is_predicted_by_its_own_pieces() -> None:
    rows = [[16_384], [512] * 32]
    together = plan(rows, 2, "per_document", WINDOWED).predicted
    for row, pieces in enumerate(rows):
        alone = plan([pieces], 2, "per_document", WINDOWED).predicted[0]
        assert together[row].tolist() == alone.tolist()


def test_measures_of_a_plan_that_can_be_worked_out_by_hand() -> None:
    # Of 512 tokens rank 0 takes the first and the last 128, rank 1 the 256 in the middle.
    rows = [[256, 256]]
    got = plan(rows, 2, "per_sequence")
    assert chunks(got, 0) == [(0, 0, 0, 128), (0, 1, 128, 256), (1, 0, 128, 256), (1, 1, 0, 128)]
    tile = 128 * 128
    found = balance(rows, got)
    assert found.cp_attention == (1 + 2) * tile / (2 * 3 * tile / 2) == 1.0
    assert found.cp_tokens == 1.0
    assert found.tile_waste == 6 * tile / (2 * 256 * 257 / 2)
    assert found.kv_cut == 1.0
    # Rank 0 lacks the first half of piece 1, rank 1 of piece 0; an all-gather brings 512.
    assert found.kv_needed == (128 + 128) / 512


def test_sums_are_divided_not_ratios_averaged() -> None:
    rows = [[4000], [10, 10, 2000]]
    both = plan(rows, 4, "per_sequence")
    meter = CPMeter()
    for row in range(2):
        meter.add(both.rows(row, row + 1), *ragged(rows[row : row + 1]))
    assert meter.result() == balance(rows, both)
    separate = [balance(rows[i : i + 1], both.rows(i, i + 1)).cp_attention for i in range(2)]
    assert min(separate) < meter.result().cp_attention < max(separate)
    assert meter.result().cp_attention != sum(separate) / 2


# --- laws ----------------------------------------------------------------------------------------

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


@given(start=st.integers(0, 5000), tokens=st.integers(1, 3000))
@settings(deadline=None)
def test_area_of_tiles_equals_the_loop_over_tiles(start: int, tokens: int) -> None:
    assert tile_area(start, start + tokens) == slow.tile_area(start, start + tokens)


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


def test_work_that_does_not_fit_the_arithmetic_is_refused() -> None:
    slow_tails = Throughput(query_tokens=(1,), key_tokens=(1, 1 << 20), achieved=((1024.0, 1.0),))
    options = CPOptions(throughput=slow_tails)
    for strategy in EVEN:
        with pytest.raises(ValueError, match="pack shorter micro-batches"):
            plan([[1 << 26]], 2, strategy, Workload(crossover=47_100), options)
    fits = plan([[1 << 22]], 2, "mixed", Workload(crossover=47_100), options)
    assert fits.predicted.min() > 1 << 40


# --- errors --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rows", "cp_size", "strategy", "message"),
    [
        ([[1]], 0, "per_document", "cp_size is 0"),
        ([[1]], 2, "per_token", "known are per_sequence, per_document"),
        ([[4], []], 2, "per_document", "without pieces"),
        ([[4, 0]], 2, "per_document", "shortest piece has 0 tokens"),
        ([[1 << 26, 1]], 2, "per_sequence", "longest micro-batch 67108865"),
    ],
)
def test_nonsense_is_refused(rows: Rows, cp_size: int, strategy: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        plan(rows, cp_size, strategy)


def test_offsets_must_span_the_pieces() -> None:
    for offsets in ([], [0], [1, 2], [0, 3]):
        with pytest.raises(ValueError, match="from 0 to 2"):
            plan_context_parallel(
                np.array([5, 5]),
                np.array(offsets, dtype=np.int64),
                cp_size=2,
                strategy="per_document",
                workload=WORKLOAD,
            )


def test_no_micro_batches_make_an_empty_plan() -> None:
    for strategy in STRATEGIES:
        got = plan([], 4, strategy)
        assert (got.num_rows, len(got.cp_rank), got.predicted.shape) == (0, 0, (0, 4))


def test_a_meter_takes_one_degree_and_something_to_measure() -> None:
    meter = CPMeter()
    with pytest.raises(ValueError, match="no micro-batch was measured"):
        meter.result()
    meter.add(plan([[8]], 2, "per_document"), *ragged([[8]]))
    with pytest.raises(ValueError, match="degree 4 after 2"):
        meter.add(plan([[8]], 4, "per_document"), *ragged([[8]]))
    with pytest.raises(ValueError, match="3 row_offsets for 1 micro-batches"):
        meter.add(plan([[8]], 2, "per_document"), *ragged([[8], [8]]))


def test_a_plan_of_the_wrong_types_is_refused() -> None:
    good = plan([[8]], 2, "per_document")
    with pytest.raises(ValueError, match=r"CPPlan.piece is int64\[3\]; it must be int32\[3\]"):
        replace(good, piece=good.piece.astype(np.int64))
    with pytest.raises(ValueError, match=r"CPPlan.predicted is int64\[1, 2\]"):
        replace(good, cp_size=3)
    with pytest.raises(ValueError, match="2 strategies for 1 micro-batches"):
        replace(good, strategy=("per_document", "per_sequence"))
