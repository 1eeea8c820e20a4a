"""Exchange lists: what ranks send, where it lands, and that nothing goes twice or for nothing."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packer.context_parallel import plan_context_parallel
from packer.context_parallel.measures import CPMeter
from packer.workload import Workload
from pipeline.shard.exchange import RankExchange, rank_exchange
from pipeline.shard.micro_batch import Chunks
from pipeline.shard.rank_views import rank_view
from tests.micro_batches import boundaries_of, chunks, chunks_of_owners, numbered

# Of a piece of 8 tokens rank 0 holds 0 1 6 7, rank 1 holds 2 3 4 5; one of 4 is whole on rank 1.
PAIR = np.array([0, 8, 12], np.int32)
PLAN = chunks((0, 0, 0, 2), (0, 0, 6, 8), (1, 0, 2, 6), (1, 1, 0, 4))


def exchanges(cu_seqlens: np.ndarray, plan: Chunks, cp_size: int) -> list[RankExchange]:
    return [rank_exchange(cu_seqlens, plan, rank, cp_size) for rank in range(cp_size)]


def test_the_outer_rank_sends_the_head_and_gets_the_middle():
    outer = rank_exchange(PAIR, PLAN, 0, 2)
    assert outer.send_index.tolist() == [0, 1]  # tokens 6 and 7 are nobody else's business
    assert outer.send_counts.tolist() == [0, 2]
    assert outer.receive_counts.tolist() == [0, 4]
    # Its buffer is tokens 0 1 6 7 of its own, then 2 3 4 5: keys of [0, 2), then of [6, 8).
    assert outer.buffer_index.tolist() == [0, 1, *(0, 1, 4, 5, 6, 7, 2, 3)]
    assert outer.cu_seqlens_q.tolist() == [0, 2, 4]
    assert outer.cu_seqlens_k.tolist() == [0, 2, 10]
    assert outer.position_ids.tolist() == [0, 1, 6, 7]
    assert (outer.max_seqlen_q, outer.max_seqlen_k) == (2, 8)
    assert (outer.num_tokens, outer.num_received) == (4, 4)


def test_the_inner_rank_does_not_send_the_piece_that_is_whole_on_it():
    inner = rank_exchange(PAIR, PLAN, 1, 2)
    assert inner.send_index.tolist() == [0, 1, 2, 3]
    assert inner.send_counts.tolist() == [4, 0]
    assert inner.receive_counts.tolist() == [2, 0]
    # Its buffer is tokens 2 3 4 5 | 0 1 2 3 of its own, then 0 1.
    assert inner.buffer_index.tolist() == [8, 9, 0, 1, 2, 3, *(4, 5, 6, 7)]
    assert inner.cu_seqlens_k.tolist() == [0, 6, 10]


def test_without_context_parallelism_nothing_moves():
    alone = rank_exchange(PAIR, None, 0, 1)
    assert alone.send_index.tolist() == []
    assert alone.send_counts.tolist() == alone.receive_counts.tolist() == [0]
    assert alone.buffer_index.tolist() == list(range(12))
    assert alone.cu_seqlens_q.tolist() == alone.cu_seqlens_k.tolist() == [0, 8, 12]


def test_a_rank_without_chunks_gets_empty_arrays():
    empty = rank_exchange(np.array([0, 1], np.int32), chunks((0, 0, 0, 1)), 1, 3)
    for name in ("position_ids", "send_index", "buffer_index"):
        assert getattr(empty, name).tolist() == [], name
    assert empty.cu_seqlens_q.tolist() == empty.cu_seqlens_k.tolist() == [0]
    assert empty.send_counts.tolist() == empty.receive_counts.tolist() == [0, 0, 0]
    assert (empty.max_seqlen_q, empty.max_seqlen_k) == (0, 0)


def test_types_are_those_that_kernels_and_torch_take():
    outer = rank_exchange(PAIR, PLAN, 0, 2)
    for name in ("position_ids", "send_index", "buffer_index", "send_counts", "receive_counts"):
        assert getattr(outer, name).dtype == np.int64, name
    assert outer.cu_seqlens_q.dtype == outer.cu_seqlens_k.dtype == np.int32


def test_pads_are_left_out():
    padded = chunks((0, 0, 0, 2), (0, 0, 6, 8), (0, -1, 0, 3), (1, 0, 2, 6), (1, 1, 0, 4))
    for rank, expected in enumerate(exchanges(PAIR, PLAN, 2)):
        found = rank_exchange(PAIR, padded, rank, 2)
        for name, value in vars(expected).items():
            assert np.array_equal(getattr(found, name), value), name


def test_a_plan_that_leaves_a_token_out_is_refused():
    torn = chunks((0, 0, 0, 2), (0, 0, 6, 8), (1, 0, 2, 5), (1, 1, 0, 4))
    with pytest.raises(ValueError, match=r"rank 0 of 2 reads 8 keys, .* give it 7: .* verify"):
        rank_exchange(PAIR, torn, 0, 2)


@pytest.mark.parametrize("cp_rank", [-1, 2])
def test_a_rank_that_does_not_exist_and_a_missing_plan_are_refused(cp_rank: int):
    with pytest.raises(ValueError, match=r"not in 0\.\.1"):
        rank_exchange(PAIR, PLAN, cp_rank, 2)
    with pytest.raises(ValueError, match="no CP plan was given"):
        rank_exchange(PAIR, None, 0, 2)


def check(lengths: list[int], plan: Chunks, cp_size: int) -> int:
    """Run the exchange with places for tokens; the number of tokens that moved.

    Twin: a token's place in the micro-batch is its name. A rank needs, of every piece, all up to
    the last query that it holds, and lacks those that it does not hold.
    """
    whole = numbered(lengths)
    cu_seqlens = boundaries_of(lengths)
    piece_of = [piece for piece, length in enumerate(lengths) for _ in range(length)]
    views = [rank_view(whole, plan, rank, cp_size) for rank in range(cp_size)]
    tables = exchanges(whole.cu_seqlens, plan, cp_size)
    outbox = [
        np.split(view.query_index[table.send_index], np.cumsum(table.send_counts)[:-1])
        for view, table in zip(views, tables, strict=True)
    ]
    moved = 0
    for rank, (view, table) in enumerate(zip(views, tables, strict=True)):
        own = view.query_index.tolist()
        inbox = [outbox[peer][rank].tolist() for peer in range(cp_size)]
        assert [len(parcel) for parcel in inbox] == table.receive_counts.tolist()
        assert inbox[rank] == []
        assert all(parcel == sorted(parcel) for parcel in inbox)
        received = [place for parcel in inbox for place in parcel]
        needed = {place for i in own for place in range(cu_seqlens[piece_of[i]], i + 1)}
        assert sorted(received) == sorted(needed - set(own))  # each once, none for nothing
        assert np.array([*own, *received], np.int64)[table.buffer_index].tolist() == (
            view.key_index.tolist()
        )
        for name in ("cu_seqlens_q", "cu_seqlens_k", "position_ids"):
            assert getattr(table, name).tolist() == getattr(view, name).tolist()
        assert (table.max_seqlen_q, table.max_seqlen_k) == (view.max_seqlen_q, view.max_seqlen_k)
        moved += len(received)
    return moved


@given(st.data())
def test_ranks_get_what_they_need_once_and_where_the_index_says(data: st.DataObject):
    lengths = data.draw(st.lists(st.integers(1, 6), min_size=1, max_size=4))
    size = data.draw(st.integers(1, 4))
    owners = data.draw(
        st.lists(st.integers(0, size - 1), min_size=sum(lengths), max_size=sum(lengths))
    )
    check(lengths, chunks_of_owners(lengths, owners), size)


@pytest.mark.parametrize("strategy", ["per_sequence", "per_document"])
@pytest.mark.parametrize("cp_size", [2, 8])
def test_as_many_tokens_move_as_the_measure_of_plans_counts(strategy: str, cp_size: int):
    lengths = [1, 300, 5, 64, 17, 1, 1, 130]
    tokens, offsets = np.array(lengths), np.array([0, len(lengths)])
    plan = plan_context_parallel(
        tokens, offsets, cp_size=cp_size, strategy=strategy, workload=Workload(crossover=1000)
    )
    meter = CPMeter()
    meter.add(plan, tokens, offsets)
    columns = (plan.cp_rank, plan.piece, plan.start, plan.stop)
    rows = zip(*(column.tolist() for column in columns), strict=True)
    moved = check(lengths, chunks(*rows), cp_size)
    assert 0 < moved < (cp_size - 1) * sum(lengths)
    assert meter.result().kv_needed == moved / ((cp_size - 1) * sum(lengths))
