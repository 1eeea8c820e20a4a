"""The padded layout of Transformer Engine's packed attention, against a slow twin of its rule."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packer.context_parallel import CPOptions, plan_context_parallel
from packer.workload import Workload
from pipeline.shard.padding import PaddedMicroBatch, padded_view
from pipeline.shard.rank_views import rank_view
from tests.micro_batches import chunks, micro_batch, numbered
from tests.reference_padding import padded_head_tail, padded_pieces, rank_places

# A piece of 5 tokens and one of 1, padded to 8 and 4 for two ranks: 2 and 1 tokens a chunk.
PAIR = micro_batch([10, 11, 12, 13, 14, 20], [0, 5, 6], [-100, 21])
PLAN = chunks(
    (0, 0, 0, 2), (0, -1, 1, 3), (0, 1, 0, 1), (0, -1, 5, 6), (1, 0, 2, 5), (1, -1, 0, 1),
    (1, -1, 3, 5),
)  # fmt: skip


def test_the_outer_rank_of_two():
    view = padded_view(PAIR, PLAN, 0, 2, pad_multiple=4, pad_token=7)
    assert view.tokens.tolist() == [10, 11, 7, 7, 20, 7]
    assert view.labels.tolist() == [11, 12, -100, -100, 21, -100]
    assert view.position_ids.tolist() == [0, 1, 6, 7, 0, 3]
    assert view.padded_index.tolist() == [0, 1, 6, 7, 8, 11]
    assert view.cu_seqlens.tolist() == [0, 5, 6]
    assert view.cu_seqlens_padded.tolist() == [0, 8, 12]
    assert (view.max_seqlen, view.num_targets, view.pad_multiple) == (8, 3, 4)


def test_the_inner_rank_of_two_holds_a_piece_of_which_it_has_no_token():
    view = padded_view(PAIR, PLAN, 1, 2, pad_multiple=4)
    assert view.tokens.tolist() == [12, 13, 14, 0, 0, 0]
    assert view.labels.tolist() == [13, 14, -100, -100, -100, -100]
    assert view.position_ids.tolist() == [2, 3, 4, 5, 1, 2]
    assert view.num_targets == 2


def test_types_are_those_that_kernels_and_torch_take():
    view = padded_view(PAIR, PLAN, 0, 2, pad_multiple=4)
    for name in ("tokens", "labels", "position_ids", "padded_index"):
        assert getattr(view, name).dtype == np.int64, name
        assert getattr(view, name).flags.writeable, name
    assert view.cu_seqlens.dtype == view.cu_seqlens_padded.dtype == np.int32


def test_degree_one_pads_nothing():
    view = padded_view(PAIR, None, 0, 1, pad_multiple=1)
    assert view.tokens.tolist() == PAIR.tokens.tolist()
    assert view.labels.tolist() == PAIR.labels.tolist()
    assert view.position_ids.tolist() == PAIR.position_ids.tolist()
    assert view.cu_seqlens.tolist() == view.cu_seqlens_padded.tolist() == [0, 5, 6]


def test_the_picture_is_the_twins():
    assert padded_head_tail([5, 1], 2, 4) == list(
        zip(*(column.tolist() for column in (PLAN.cp_rank, PLAN.piece, PLAN.start, PLAN.stop)),
            strict=True)
    )  # fmt: skip


@pytest.mark.parametrize(("cp_size", "pad_to", "multiple"), [(2, 1, 4), (2, 32, 32), (4, 12, 24)])
def test_the_strategy_plans_the_twins_layout(cp_size: int, pad_to: int, multiple: int):
    lengths = [1, 31, 32, 33, 70, 1]
    plan = plan_context_parallel(
        np.array(lengths),
        np.array([0, len(lengths)]),
        cp_size=cp_size,
        strategy="padded_head_tail",
        workload=Workload(crossover=1000),
        options=CPOptions(pad_to=pad_to),
    )
    columns = (plan.cp_rank, plan.piece, plan.start, plan.stop)
    rows = list(zip(*(column.tolist() for column in columns), strict=True))
    assert rows == padded_head_tail(lengths, cp_size, multiple)


@given(
    st.lists(st.integers(1, 70), min_size=1, max_size=5),
    st.sampled_from([(2, 4), (2, 12), (3, 6), (4, 8), (4, 32)]),
)
def test_ranks_hold_what_the_published_rule_gives(lengths: list[int], degree: tuple[int, int]):
    cp_size, multiple = degree
    whole = numbered(lengths)
    row = chunks(*padded_head_tail(lengths, cp_size, multiple))
    begin = np.cumsum([0] + [len(places) for places in padded_pieces(lengths, multiple)]).tolist()
    held: list[int] = []
    for rank in range(cp_size):
        view = padded_view(whole, row, rank, cp_size, pad_multiple=multiple)
        expected: list[tuple[int, int, int]] = []
        for piece, places in enumerate(rank_places(lengths, cp_size, multiple)[rank]):
            for kind, _, place in places:
                i = int(whole.cu_seqlens[piece]) + place
                real = (
                    (int(whole.tokens[i]), int(whole.labels[i])) if kind == "token" else (0, -100)
                )
                expected.append((real[0], real[1], place))
                held.append(begin[piece] + place)
        columns = (view.tokens, view.labels, view.position_ids)
        assert list(zip(*(column.tolist() for column in columns), strict=True)) == expected
        assert held[-len(expected) :] == view.padded_index.tolist()
        assert len(expected) * cp_size == begin[-1] == view.cu_seqlens_padded[-1]
        assert view.cu_seqlens_padded.tolist() == begin
        # A trainer that drops pads sees the same tokens in the same order.
        tokens = rank_view(whole, row, rank, cp_size).tokens
        assert view.tokens[view.tokens > 0].tolist() == tokens.tolist()
    assert sorted(held) == list(range(begin[-1]))


def refused(
    *rows: tuple[int, int, int, int], pad_multiple: int = 4, cp_rank: int = 0
) -> PaddedMicroBatch:
    return padded_view(PAIR, chunks(*rows), cp_rank, 2, pad_multiple=pad_multiple)


def test_a_plan_or_multiple_that_is_not_of_this_layout_is_refused():
    good = padded_head_tail([5, 1], 2, 4)
    assert refused(*good).num_targets == 3
    for multiple in (0, 1, 2, 6):
        with pytest.raises(ValueError, match=r"multiple of 2 x cp_size = 4.*padded_head_tail"):
            refused(*good, pad_multiple=multiple)
    with pytest.raises(ValueError, match="has 6 pads, its pad_multiple needs 10"):
        refused(*good, pad_multiple=8)
    with pytest.raises(ValueError, match="has 0 pads, its pad_multiple needs 6"):
        refused((0, 0, 0, 5), (1, 1, 0, 1))
    with pytest.raises(ValueError, match="does not give CP rank 0 the equal head and tail"):
        refused(*((1 - r, p, a, b) for r, p, a, b in good))
    with pytest.raises(ValueError, match="does not give CP rank 0 the equal head and tail"):
        refused(*((r, p, a + 6, b + 6) if p < 0 else (r, p, a, b) for r, p, a, b in good))
    with pytest.raises(ValueError, match="no CP plan was given"):
        padded_view(PAIR, None, 0, 2, pad_multiple=4)
    with pytest.raises(ValueError, match=r"not in 0\.\.1"):
        refused(*good, cp_rank=2)
