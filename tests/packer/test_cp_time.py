"""CP ranks' time: what it is made of, and strategies compared by it on real lengths."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from packer.context_parallel import CPOptions, plan_context_parallel
from packer.context_parallel.kernels import TILE, load_ranks
from packer.context_parallel.measures import CPMeter
from packer.context_parallel.options import cost_of
from packer.lengths import fig3_lengths
from packer.packing.config import PackingConfig
from packer.packing.whole import pack
from packer.profile import Profile, Table
from packer.simulate import cut_lengths
from packer.throughput import FLAT, PUBLISHED, Throughput
from packer.workload import SCALE, Workload
from tests.packer.small_cp_plans import AREA, FIG3_CROSSOVER, chunks, plan


@pytest.fixture(scope="module")
def micro_batches() -> tuple[np.ndarray, np.ndarray]:
    """40 micro-batches of 131,072 tokens."""
    bounds = PackingConfig(num_micro_batches=4, context_length=131_072, max_tokens=131_072)
    pieces = cut_lengths(fig3_lengths(3600, seed=0), 131_072)
    steps = pack("concat", pieces, bounds, FIG3_CROSSOVER).steps
    assert steps is not None
    offsets = steps.row_offsets[:41]
    return steps.pieces.tokens[: offsets[-1]], offsets


@pytest.mark.parametrize(("cp_size", "excess"), [(4, 0.002), (8, 0.004), (16, 0.006)])
def test_ranks_finish_together_on_real_lengths(micro_batches, cp_size: int, excess: float) -> None:
    meters = {}
    for strategy in ("mixed", "per_document"):
        got = plan_context_parallel(
            *micro_batches, cp_size=cp_size, strategy=strategy, workload=FIG3_CROSSOVER
        )
        meter = CPMeter()
        meter.add(got, *micro_batches)
        meters[strategy] = meter.result()
    assert meters["mixed"].cp_attention < 1 + excess
    assert meters["mixed"].kv_cut < 0.55 < 0.99 < meters["per_document"].kv_cut
    assert meters["mixed"].kv_needed < 0.6 * meters["per_document"].kv_needed
    assert meters["mixed"].predicted_time < meters["per_document"].predicted_time


@pytest.mark.parametrize(
    "options",
    [CPOptions(), AREA, CPOptions(kv_exchange=0.25)],
    ids=["published", "area", "exchange"],
)
def test_adaptive_is_never_slower_than_any_candidate(micro_batches, options: CPOptions) -> None:
    plans = {
        name: plan_context_parallel(
            *micro_batches, cp_size=8, strategy=name, workload=FIG3_CROSSOVER, options=options
        )
        for name in (*options.candidates, "adaptive")
    }
    got = plans.pop("adaptive")
    slowest = np.stack([each.predicted.max(axis=1) for each in plans.values()], axis=1)
    assert np.array_equal(got.considered, slowest)
    assert np.array_equal(got.predicted.max(axis=1), slowest.min(axis=1))
    for row, name in enumerate(got.strategy):
        assert chunks(got, row) == chunks(plans[name], row)
        assert name == options.candidates[int(np.argmin(slowest[row]))]


def test_adaptive_keeps_to_its_candidates() -> None:
    options = replace(AREA, candidates=("per_sequence", "per_document"))
    got = plan([[40_000, 3, 900], [100] * 20], 4, "adaptive", options=options)
    assert got.strategy == ("per_document", "per_sequence")
    assert got.considered.shape == (2, 2)
    assert plan([[8]], 2, "mixed").considered.shape == (1, 0)


@pytest.mark.parametrize(("price", "saved"), [(1 / 64, 0.003), (1 / 4, 0.04)])
def test_exchange_is_weighed_against_attention(micro_batches, price: float, saved: float) -> None:
    """Plans made for exposed exchange take less time than those made without a thought of it."""
    options = replace(AREA, kv_exchange=price)
    cost = cost_of(*micro_batches, FIG3_CROSSOVER, options)
    times = []
    for made_for in (AREA, options):
        got = plan_context_parallel(
            *micro_batches, cp_size=8, strategy="mixed", workload=FIG3_CROSSOVER, options=made_for
        )
        loads = np.zeros((4, got.num_rows, 8), np.int64)
        load_ranks(got.row_offsets, got.cp_rank, got.piece, got.start, got.stop, cost.grid, loads)
        times.append(cost.predict(loads[0], loads[2], loads[3]).max(axis=1).sum())
    assert got.predicted.max(axis=1).sum() == times[1]
    assert times[1] < (1 - saved) * times[0]


def test_predicted_time_has_the_kernel_and_the_exchange_in_it() -> None:
    half = Throughput(query_tokens=(128, 256), key_tokens=(128,), achieved=((1.0,), (2.0,)))
    options = CPOptions(throughput=half, kv_exchange=0.5)
    # Rank 0 has tokens 0..127 and 384..511, two chunks at half the speed; rank 1 has 128..383.
    got = plan([[512]], 2, "per_document", Workload(crossover=1024), options)
    linear, pair = 256 * SCALE, 2 * SCALE * TILE**2 // 1024
    assert got.predicted[0].tolist() == [
        linear + 2 * (1 + 4) * pair + SCALE * 256 // 2,
        linear + (2 + 3) * pair + SCALE * 128 // 2,
    ]


def test_throughput_is_the_profile_s_where_it_has_one() -> None:
    half = Throughput(query_tokens=(1,), key_tokens=(1,), achieved=((2.0,),))
    table = Table(tokens=(1000, 2000), time=(1.0, 2.0))
    square = Table(tokens=(1000, 2000), time=(1.0, 4.0))
    measured = Profile(linear=table, attention=square, throughput=half)
    without = replace(measured, throughput=None)
    given = CPOptions()
    assert given.throughput_of(Workload(crossover=None, profile=measured)) is half
    assert given.throughput_of(Workload(crossover=None, profile=without)) is PUBLISHED
    assert given.throughput_of(FIG3_CROSSOVER) is PUBLISHED
    assert AREA.throughput_of(Workload(crossover=None, profile=measured)) is FLAT


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("kv_exchange", -1.0, "kv_exchange is -1.0; it must be 0 to 64"),
        ("kv_exchange", float("nan"), "kv_exchange is nan"),
        ("pad_to", 0, "pad_to 0 must be at least 1"),
        ("candidates", (), r"candidates are \[\]; give one or more"),
        ("candidates", ("padded_head_tail",), "give one or more of"),
    ],
)
def test_nonsense_options_are_refused(field: str, value: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(CPOptions(), **{field: value})
