"""Profiles: measured on the CPU reference, read by the planner; what happens to noise."""

from __future__ import annotations

import itertools
import time
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from packer.context_parallel.kernels import tile_area as planned_area
from packer.profile import Profile
from packer.throughput import Throughput
from packer.workload import Workload
from trainer.errors import TrainerError
from trainer.layer_times import LayerTimes
from trainer.profile import Sizes, intercept, measure_profile, rising_table, tile_area
from trainer.shape import LayerShape
from trainer.timing import Clock, open_device

SHAPE = LayerShape(hidden=128, heads=4, kv_heads=2, head_dim=8, intermediate=256)


def layer_times(shape: LayerShape = SHAPE) -> LayerTimes:
    return LayerTimes.on(
        shape, backend="auto", device=torch.device("cpu"), dtype=torch.float32, repeats=3
    )


class Ideal:
    """A device on which attention takes its area and everything else its tokens."""

    def saturating(self, queries: int, keys: int) -> int:
        return 3

    def attention_ms(self, segments: list[tuple[int, int]]) -> float:
        return sum(tile_area(*segment) for segment in segments) / 2.0**20

    def linear_calls(self):
        return lambda tokens: 5.0 + tokens / 64


def test_an_ideal_device_gives_the_tables_that_one_expects() -> None:
    done: list[None] = []
    sizes = Sizes.up_to(1024)
    profile = measure_profile(
        Ideal(),  # pyright: ignore[reportArgumentType]
        sizes,
        {"device": "ideal"},
        lambda: done.append(None),
    )
    assert profile["linear"]["tokens"] == [128, 256, 512, 1024]
    assert profile["linear"]["time"] == pytest.approx([2, 4, 8, 16])
    assert profile["constant"] == pytest.approx(5)
    # a piece of up to 128 tokens is one tile: the first of them is kept, the rest is no rise
    assert profile["about"]["dropped"]["attention"] == [16, 32, 64]
    assert profile["attention"]["tokens"] == [128, 256, 512, 1024]
    assert profile["attention"]["time"] == [2.0**-6 * tiles for tiles in (1, 3, 10, 36)]
    assert profile["throughput"] == {
        "query_tokens": [128, 256, 512, 1024],
        "key_tokens": [128, 256, 512, 1024],
        "achieved": [[2.0**20] * 4] * 4,
    }
    assert len(done) == sizes.num_measurements == 2 + 4 + 7 + 10
    assert profile["about"]["device"] == "ideal"


def test_where_keys_are_fewer_than_queries_the_table_goes_on_as_the_planner_has_it() -> None:
    class Uneven(Ideal):
        def attention_ms(self, segments: list[tuple[int, int]]) -> float:
            queries, keys = segments[0]
            return super().attention_ms(segments) / (queries + keys / 1000)

    grid = measure_profile(
        Uneven(),  # pyright: ignore[reportArgumentType]
        Sizes(pieces=(128, 512), chunks=(128, 256, 512), linear=(64, 128)),
        {},
        lambda: None,
    )["throughput"]["achieved"]
    sizes = (128, 256, 512)
    planned = Throughput.from_chunks(sizes, sizes, lambda q, k: 2**20 * (q + k / 1000))
    assert np.array(grid) == pytest.approx(np.array(planned.achieved))


@pytest.mark.parametrize("tp_size", [1, 2])
def test_the_planner_reads_what_the_cpu_reference_measured(
    tp_size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The thread's own CPU time, so that others at work on this machine are no noise.
    monkeypatch.setattr("trainer.timing.time", SimpleNamespace(perf_counter=time.thread_time))
    sizes = Sizes(pieces=(16, 128, 512), chunks=(128, 512), linear=(64, 1024))
    document = measure_profile(layer_times(SHAPE.share(tp_size)), sizes, {}, lambda: None)
    profile = Profile.from_tables(document)
    work = Workload(crossover=None, profile=profile).of(np.array([1, 100, 1000, 2000]))
    assert (np.diff(work) > 0).all()
    assert 0 <= document["constant"] <= document["about"]["one_token"]["linear"]
    achieved = np.array(document["throughput"]["achieved"])
    assert achieved.shape == (2, 2)
    assert (achieved > 0).all()
    Throughput.parse(document["throughput"])


@given(st.integers(1, 1000), st.integers(0, 1000))
def test_the_area_is_the_planners(queries: int, before: int) -> None:
    assert tile_area(queries, before + queries) == planned_area.py_func(before, before + queries)


def test_a_literal_area() -> None:
    assert tile_area(200, 1000) == 2 * 128 * 1024
    assert tile_area(1, 1) == 128 * 128
    assert tile_area(129, 129) == 128 * (128 + 256)


@given(st.lists(st.integers(-2, 8), min_size=1, max_size=9))
def test_the_fewest_points_are_left_out(times: list[int]) -> None:
    tokens = range(1, len(times) + 1)
    best = 0
    for chosen in itertools.product((False, True), repeat=len(times)):
        part = [time for time, kept in zip(times, chosen, strict=True) if kept]
        if all(time > 0 for time in part) and part == sorted(set(part)):
            best = max(best, len(part))
    if best < 2:
        with pytest.raises(TrainerError, match="noise"):
            rising_table(tokens, times, "linear")
        return
    table, dropped = rising_table(tokens, times, "linear")
    assert len(table["time"]) == best
    assert table["time"] == sorted(set(table["time"])) == [times[t - 1] for t in table["tokens"]]
    assert sorted(table["tokens"] + dropped) == list(tokens)


def test_the_intercept_of_a_line_is_found() -> None:
    tokens = [100, 200, 800]
    assert intercept(tokens, [3 + 0.5 * t for t in tokens]) == pytest.approx(3)
    assert intercept(tokens, [0.5 * t for t in tokens]) == pytest.approx(0, abs=1e-9)


def test_sizes_are_powers_and_the_longest_piece_itself() -> None:
    assert Sizes.up_to(1000).chunks == (128, 256, 512, 1000)
    assert Sizes.up_to(131_072).linear == (2048, 4096, 8192, 16_384, 32_768)
    assert Sizes.up_to(131_072, factor=4).chunks == (128, 512, 2048, 8192, 32_768, 131_072)
    for tokens in (255, 1 << 27):
        with pytest.raises(TrainerError, match="it must have 256 to"):
            Sizes.up_to(tokens)


def test_a_device_is_filled_within_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """100 processors x 32 blocks over 4 heads: 800 chunks of one tile, 80 of ten tiles."""
    times = LayerTimes(
        shape=SHAPE,
        attend=lambda *_: torch.empty(0),
        dtype=torch.bfloat16,
        clock=Clock(device=torch.device("cuda")),
    )
    monkeypatch.setattr(
        "torch.cuda.get_device_properties", lambda _: SimpleNamespace(multi_processor_count=100)
    )
    monkeypatch.setattr("torch.cuda.empty_cache", lambda: None)
    monkeypatch.setattr("torch.cuda.mem_get_info", lambda _: (1 << 40, 1 << 40))
    assert times.saturating(128, 128) == 800
    assert times.saturating(1280, 5000) == 80
    # a key takes 2 bytes x 8 x (4 x 2 + 2 x 4), a query 2 x 8 x 16 + 8 x 8 x 4
    monkeypatch.setattr("torch.cuda.mem_get_info", lambda _: (2 * 20 * 1000 * (256 + 512), 1 << 40))
    assert times.saturating(1000, 1000) == 20
    assert times.saturating(100_000, 100_000) == 1


def test_the_median_counts_and_the_first_run_does_not() -> None:
    clock = Clock(device=torch.device("cpu"), repeats=5)
    runs = iter([9.0, 1, 7, 3, 8, 2])  # the first is the warm-up
    taken: list[float] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Clock, "_once", lambda self, call: call())
        assert clock.median_ms(lambda: taken.append(next(runs)) or taken[-1]) == 3
        slow = Clock(device=torch.device("cpu"), repeats=50, budget_s=0.002)
        calls: list[None] = []
        assert slow.median_ms(lambda: calls.append(None) or 1.0) == 1.0
        assert len(calls) == 4  # one to warm up; three are over the budget


def test_lack_of_memory_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate\nmore")

    times, says = layer_times(), "Tried to allocate; lower --max-tokens"
    call = times.linear_calls()
    monkeypatch.setattr(LayerTimes, "_normal", full)
    for measure in (lambda: times.attention_ms([(1, 1)]), times.linear_calls, lambda: call(1)):
        with pytest.raises(TrainerError, match=says):
            measure()


@pytest.mark.parametrize(
    ("name", "says"),
    [("cuda:99", "no CUDA device 99"), ("gpu", 'no device "gpu"'), ("meta", 'no device "meta"')],
)
def test_a_device_that_is_not_there_is_refused(name: str, says: str) -> None:
    with pytest.raises(TrainerError, match=says):
        open_device(name)


def test_the_linear_part_is_the_layers_products_on_all_tokens() -> None:
    """FLOPs that torch counts: three products of each weight and token, of which one is forward."""
    from torch.utils.flop_counter import FlopCounterMode

    times = layer_times()
    weights = SHAPE.hidden * (2 * 4 * 8 + 2 * 2 * 8 + 3 * 256)
    call = times.linear_calls()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Clock, "median_ms", lambda self, call: (call(), 1.0)[1])
        with FlopCounterMode(display=False) as counter:
            call(10)
    backward_and_forward, first_outputs = 3 * 2 * weights * 10, 2 * weights * 10
    assert counter.get_total_flops() == backward_and_forward + first_outputs
