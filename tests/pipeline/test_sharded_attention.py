"""Attention of CP ranks together is attention of the whole, forward and gradient, in float64.

Ranks compute on what they hold and what reaches them over a wire, in both forms: all keys gathered,
and only the needed ones exchanged.
"""

from collections.abc import Callable, Sequence
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packer.context_parallel import DIAGNOSTIC, STRATEGIES, plan_context_parallel
from packer.workload import Workload
from pipeline.shard.exchange import rank_exchange
from pipeline.shard.micro_batch import Chunks
from pipeline.shard.rank_views import rank_view
from tests.micro_batches import chunks, chunks_of_owners, numbered
from tests.reference_attention import Result, inputs, varlen_attention, whole_attention
from tests.reference_padding import padded_head_tail

MIXES = {
    "one token": (1,),
    "one-token pieces": (1,) * 11,
    "odd": (7, 1, 40, 3),
    "twos": (2, 2, 2),
    "over tiles": (129, 1, 300, 127, 5),
    "one long": (1100, 1, 33, 128),
}
WORKLOAD = Workload(crossover=1000)
EVERY = (*STRATEGIES, *DIAGNOSTIC)


@cache
def reference(lengths: tuple[int, ...]) -> Result:
    return whole_attention(*inputs(sum(lengths)), lengths)


def planned(lengths: Sequence[int], cp_size: int, strategy: str) -> Chunks:
    plan = plan_context_parallel(
        np.array(lengths),
        np.array([0, len(lengths)]),
        cp_size=cp_size,
        strategy=strategy,
        workload=WORKLOAD,
    )
    columns = (plan.cp_rank, plan.piece, plan.start, plan.stop)
    return chunks(*zip(*(column.tolist() for column in columns), strict=True))


def exchange(parcels: list[list[np.ndarray]]) -> list[list[np.ndarray]]:
    """All-to-all: `parcels[a][b]` goes from rank a to rank b."""
    return [list(received) for received in zip(*parcels, strict=True)]


def parcels_of(values: np.ndarray, counts: np.ndarray) -> list[np.ndarray]:
    """Consecutive parts of these lengths, nothing left over."""
    assert len(values) == counts.sum()
    return np.split(values, np.cumsum(counts)[:-1])


def gathered(lengths: tuple[int, ...], plan: Chunks, cp_size: int) -> tuple[Result, list[int]]:
    """Every rank gets all keys and values; gradients are summed and go back to their owners."""
    q, kv, grad = inputs(sum(lengths))
    whole = numbered(lengths)
    views = [rank_view(whole, plan, rank, cp_size) for rank in range(cp_size)]
    everything = np.full_like(kv, np.nan)
    for view in views:  # the all-gather: each rank brings what it holds
        everything[view.query_index] = kv[view.query_index]
    total = Result(np.full_like(q, np.nan), np.full_like(q, np.nan), np.zeros_like(kv), 0)
    work = []
    for view in views:
        mine, keys = view.query_index, view.key_index
        tables = (view.cu_seqlens_q, view.cu_seqlens_k)
        part = varlen_attention(q[mine], everything[keys], grad[mine], *tables)
        total.out[mine], total.grad_q[mine] = part.out, part.grad_q
        np.add.at(total.grad_kv, keys, part.grad_kv)
        work.append(part.pairs)
    return total, work


def exchanged(lengths: tuple[int, ...], plan: Chunks, cp_size: int) -> tuple[Result, list[int]]:
    """A rank has its own tokens and what it received; it knows no place in the whole."""
    cu_seqlens = numbered(lengths).cu_seqlens
    everyone = inputs(sum(lengths))
    held = [rank_view(numbered(lengths), plan, r, cp_size).query_index for r in range(cp_size)]
    local = [[values[mine] for values in everyone] for mine in held]
    tables = [rank_exchange(cu_seqlens, plan, rank, cp_size) for rank in range(cp_size)]
    inbox = exchange(
        [
            parcels_of(kv[table.send_index], table.send_counts)
            for (_, kv, _), table in zip(local, tables, strict=True)
        ]
    )
    parts, returned = [], []
    for (q, kv, grad), table, parcels in zip(local, tables, inbox, strict=True):
        assert [len(parcel) for parcel in parcels] == table.receive_counts.tolist()
        buffer = np.concatenate([kv, *parcels])
        part = varlen_attention(
            q, buffer[table.buffer_index], grad, table.cu_seqlens_q, table.cu_seqlens_k
        )
        grad_buffer = np.zeros_like(buffer)
        np.add.at(grad_buffer, table.buffer_index, part.grad_kv)
        part.grad_kv = grad_buffer[: len(kv)]
        parts.append(part)
        returned.append(parcels_of(grad_buffer[len(kv) :], table.receive_counts))
    q, kv, _ = everyone
    total = Result(np.full_like(q, np.nan), np.full_like(q, np.nan), np.full_like(kv, np.nan), 0)
    columns = (held, parts, tables, exchange(returned))
    for mine, part, table, parcels in zip(*columns, strict=True):
        np.add.at(part.grad_kv, table.send_index, np.concatenate(parcels))
        total.out[mine], total.grad_q[mine], total.grad_kv[mine] = (
            part.out, part.grad_q, part.grad_kv,
        )  # fmt: skip
    return total, [part.pairs for part in parts]


FORMS: dict[str, Callable[[tuple[int, ...], Chunks, int], tuple[Result, list[int]]]] = {
    "gathered": gathered,
    "exchanged": exchanged,
}


def check(lengths: tuple[int, ...], plan: Chunks, cp_size: int) -> None:
    """Both forms equal the whole, and each rank did the work of its chunks, no more and no less."""
    expected, work = reference(lengths), [0] * cp_size
    columns = (plan.cp_rank, plan.piece, plan.start, plan.stop)
    for rank, piece, start, stop in zip(*(column.tolist() for column in columns), strict=True):
        work[rank] += sum(range(start + 1, stop + 1)) if piece >= 0 else 0
    assert sum(work) == expected.pairs == sum(n * (n + 1) // 2 for n in lengths)
    for name, form in FORMS.items():
        found, pairs = form(lengths, plan, cp_size)
        assert pairs == work, name
        for field in ("out", "grad_q", "grad_kv"):
            np.testing.assert_allclose(
                getattr(found, field), getattr(expected, field), rtol=0, atol=1e-12,
                err_msg=f"{name} {field}",
            )  # fmt: skip


@pytest.mark.parametrize("cp_size", [1, 2, 4, 8])
@pytest.mark.parametrize("strategy", EVERY)
@pytest.mark.parametrize("mix", MIXES)
def test_sharded_attention_is_whole_attention(mix: str, strategy: str, cp_size: int):
    check(MIXES[mix], planned(MIXES[mix], cp_size, strategy), cp_size)


@pytest.mark.parametrize("cp_size", [2, 4])
@pytest.mark.parametrize("mix", MIXES)
def test_pads_change_nothing(mix: str, cp_size: int):
    plan = chunks(*padded_head_tail(MIXES[mix], cp_size, 32))
    assert (plan.piece < 0).any()
    check(MIXES[mix], plan, cp_size)


@given(
    st.lists(st.integers(1, 30), min_size=1, max_size=6).map(tuple),
    st.sampled_from(EVERY),
    st.sampled_from([1, 2, 3, 4, 8]),
)
@settings(max_examples=60)
def test_random_mixes(lengths: tuple[int, ...], strategy: str, cp_size: int):
    check(lengths, planned(lengths, cp_size, strategy), cp_size)


@given(st.data())
@settings(max_examples=40)
def test_any_plan_at_all(data: st.DataObject):
    lengths = tuple(data.draw(st.lists(st.integers(1, 12), min_size=1, max_size=4)))
    owner, total = st.integers(0, 3), sum(lengths)
    owners = data.draw(st.lists(owner, min_size=total, max_size=total))
    check(lengths, chunks_of_owners(lengths, owners), 4)


def test_the_rare_cases_do_occur():
    plan = planned(MIXES["one token"], 8, "per_document")
    assert len(np.unique(plan.cp_rank)) < 8  # ranks without a token
    table = rank_exchange(numbered(MIXES["one long"]).cu_seqlens,
                          planned(MIXES["one long"], 8, "per_document"), 3, 8)  # fmt: skip
    assert len(np.unique(table.buffer_index)) < len(table.buffer_index)  # a key of two chunks
    assert len(np.unique(table.send_index)) < len(table.send_index)  # a token for two ranks


def test_the_reference_gradient_is_the_derivative():
    """Complex steps, which are exact: of each input in turn, the slope of out . grad."""
    q, kv, grad = inputs(5)
    result = whole_attention(q, kv, grad, (4, 1))
    for values, gradient in ((q, result.grad_q), (kv, result.grad_kv)):
        for place in np.ndindex(values.shape):
            stepped = [q.astype(complex), kv.astype(complex)]
            stepped[0 if values is q else 1][place] += 1e-30j
            out = whole_attention(stepped[0], stepped[1], grad.astype(complex), (4, 1)).out
            assert np.sum(out * grad).imag / 1e-30 == pytest.approx(gradient[place], abs=1e-12)
