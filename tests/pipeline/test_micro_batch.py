"""What a rank sees, in pictures that can be checked by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.shard.rank_views import rank_view
from pipeline.shard.spans import boundaries, spans
from tests.micro_batches import boundaries_of, chunks, chunks_of_owners, micro_batch

# One document of 8 tokens, whole, and the first 4 tokens of another that goes on with 24.
PAIR = micro_batch([10, 11, 12, 13, 14, 15, 16, 17, 20, 21, 22, 23], [0, 8, 12], [-100, 24])
# Head-tail per document: of four chunks rank 0 holds the outer, rank 1 the inner two.
HEAD_TAIL = chunks(
    (0, 0, 0, 2), (0, 0, 6, 8), (0, 1, 0, 1), (0, 1, 3, 4), (1, 0, 2, 6), (1, 1, 1, 3)
)


def test_a_label_is_the_next_token_of_the_piece_and_at_its_end_the_last_label():
    assert PAIR.labels.tolist() == [11, 12, 13, 14, 15, 16, 17, -100, 21, 22, 23, 24]
    assert PAIR.labels.dtype == np.int64
    assert PAIR.num_targets == 11


def test_positions_restart_in_every_piece():
    assert PAIR.position_ids.tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3]
    assert PAIR.max_seqlen == 8


def test_without_context_parallelism_the_rank_sees_all_of_it():
    view = rank_view(PAIR, None, 0, 1)
    assert view.tokens.tolist() == PAIR.tokens.tolist()
    assert view.labels.tolist() == PAIR.labels.tolist()
    assert view.position_ids.tolist() == PAIR.position_ids.tolist()
    assert view.query_index.tolist() == view.key_index.tolist() == list(range(12))
    assert view.cu_seqlens_q.tolist() == view.cu_seqlens_k.tolist() == [0, 8, 12]
    assert (view.max_seqlen_q, view.max_seqlen_k, view.num_targets) == (8, 8, 11)


def test_the_outer_rank_of_a_head_tail_split():
    view = rank_view(PAIR, HEAD_TAIL, 0, 2)
    assert view.tokens.tolist() == [10, 11, 16, 17, 20, 23]
    # 11's label is 12, a token of the other rank; 17 ends its document; 24 lies beyond the piece.
    assert view.labels.tolist() == [11, 12, 17, -100, 21, 24]
    assert view.position_ids.tolist() == [0, 1, 6, 7, 0, 3]
    assert view.query_index.tolist() == [0, 1, 6, 7, 8, 11]
    assert view.cu_seqlens_q.tolist() == [0, 2, 4, 5, 6]
    assert view.key_index.tolist() == [0, 1, *range(8), 8, 8, 9, 10, 11]
    assert view.cu_seqlens_k.tolist() == [0, 2, 10, 11, 15]
    assert (view.max_seqlen_q, view.max_seqlen_k, view.num_targets) == (2, 8, 5)


def test_the_inner_rank_of_a_head_tail_split():
    view = rank_view(PAIR, HEAD_TAIL, 1, 2)
    assert view.tokens.tolist() == [12, 13, 14, 15, 21, 22]
    assert view.labels.tolist() == [13, 14, 15, 16, 22, 23]
    assert view.position_ids.tolist() == [2, 3, 4, 5, 1, 2]
    assert view.query_index.tolist() == [2, 3, 4, 5, 9, 10]
    assert view.cu_seqlens_q.tolist() == [0, 4, 6]
    assert view.key_index.tolist() == [0, 1, 2, 3, 4, 5, 8, 9, 10]
    assert view.cu_seqlens_k.tolist() == [0, 6, 9]
    assert (view.max_seqlen_q, view.max_seqlen_k, view.num_targets) == (4, 6, 6)


def test_a_rank_without_chunks_gets_empty_arrays():
    single = micro_batch([5], [0, 1], [-100])
    view = rank_view(single, chunks((0, 0, 0, 1)), 1, 2)
    assert len(view.tokens) == len(view.labels) == len(view.key_index) == 0
    assert view.cu_seqlens_q.tolist() == view.cu_seqlens_k.tolist() == [0]
    assert (view.max_seqlen_q, view.max_seqlen_k, view.num_targets) == (0, 0, 0)


def test_types_are_those_that_kernels_and_torch_take():
    view = rank_view(PAIR, HEAD_TAIL, 0, 2)
    for name in ("tokens", "labels", "position_ids", "query_index", "key_index"):
        assert getattr(view, name).dtype == np.int64, name
        assert getattr(view, name).flags.writeable, name
    assert view.cu_seqlens_q.dtype == view.cu_seqlens_k.dtype == np.int32


@pytest.mark.parametrize("cp_rank", [-1, 2])
def test_a_rank_that_does_not_exist_is_refused(cp_rank: int):
    with pytest.raises(ValueError, match=r"not in 0\.\.1"):
        rank_view(PAIR, HEAD_TAIL, cp_rank, 2)


def test_context_parallelism_without_a_plan_is_refused():
    with pytest.raises(ValueError, match="no CP plan was given"):
        rank_view(PAIR, None, 0, 2)


def test_pads_are_left_out():
    three = micro_batch([10, 11, 12], [0, 3], [13])
    padded = chunks((0, 0, 0, 1), (0, -1, 0, 1), (1, 0, 1, 3))
    plain = chunks((0, 0, 0, 1), (1, 0, 1, 3))
    for rank, tokens in enumerate(([10], [11, 12])):
        view = rank_view(three, padded, rank, 2)
        assert view.tokens.tolist() == tokens
        for name in ("key_index", "cu_seqlens_q", "cu_seqlens_k"):
            expected = getattr(rank_view(three, plain, rank, 2), name)
            assert getattr(view, name).tolist() == expected.tolist()


@given(st.data())
def test_every_query_of_a_rank_sees_exactly_its_pieces_tokens_up_to_itself(data: st.DataObject):
    """Twin: walk the chunks; causal masks aligned at the end give query i the keys before it."""
    lengths = data.draw(st.lists(st.integers(1, 6), min_size=1, max_size=4))
    cu_seqlens = boundaries_of(lengths)
    whole = micro_batch(list(range(cu_seqlens[-1])), cu_seqlens, [99] * len(lengths))
    ranks = data.draw(st.lists(st.integers(0, 2), min_size=len(whole.tokens)))
    plan = chunks_of_owners(lengths, ranks)
    seen = []
    for rank in range(3):
        view = rank_view(whole, plan, rank, 3)
        for chunk in range(len(view.cu_seqlens_q) - 1):
            queries = view.query_index[view.cu_seqlens_q[chunk] : view.cu_seqlens_q[chunk + 1]]
            keys = view.key_index[view.cu_seqlens_k[chunk] : view.cu_seqlens_k[chunk + 1]]
            for i, query in enumerate(queries):
                visible = keys[: len(keys) - len(queries) + i + 1]
                first = max(start for start in cu_seqlens if start <= query)
                assert visible.tolist() == list(range(first, query + 1))
                seen.append(int(query))
    assert sorted(seen) == list(range(len(whole.tokens)))


def test_spans_and_boundaries_of_nothing_are_empty():
    empty = np.empty(0, np.int64)
    assert spans(empty, empty).tolist() == []
    assert boundaries(empty).tolist() == [0]
    assert spans(np.array([4, 9]), np.array([0, 2])).tolist() == [9, 10]
