"""FLOPs to time: what a cluster does to the crossover."""

from __future__ import annotations

from dataclasses import replace

import pytest

from packer.hardware import Hardware, workload_of_model
from packer.shapes.layer import Layer, ModelShape
from packer.shapes.read import shape_of
from packer.workload import LARGEST_CROSSOVER, Span
from tests.model_shapes import GEMMA_2_9B, LLAMA_2_7B

SHAPE = ModelShape(
    hidden_size=16,
    layers=(Layer(linear_flops=4000, pair_flops=8, kv_width=32),) * 2,
)
EVEN = Hardware(gemm_flops=1000.0, attention_flops=1000.0)


def crossover(hardware: Hardware | None) -> int | None:
    return workload_of_model(SHAPE, hardware).crossover


def test_at_one_speed_and_alone_it_is_the_flops() -> None:
    assert crossover(None) == crossover(EVEN) == 1000


def test_slow_attention_crosses_early() -> None:
    assert crossover(replace(EVEN, attention_flops=500.0)) == 500


def test_products_spread_over_tensor_parallel_gpus_like_attention() -> None:
    assert crossover(replace(EVEN, tp_size=8)) == 1000


def test_a_tensor_parallel_group_sends_the_hidden_state_four_times_a_layer() -> None:
    # A layer: 4000 / (2 x 1000) = 2 s of products; 4 x 16 numbers of 2 bytes, half of them from
    # the other rank, = 64 bytes at 32 bytes/s = 2 s. A pair: 8 / (2 x 1000) s.
    assert crossover(replace(EVEN, tp_size=2, tp_bytes_per_s=32.0)) == 2 * 4 * 1000 // 4


def test_a_layer_of_one_block_sends_it_twice() -> None:
    layers = tuple(replace(layer, blocks=1) for layer in SHAPE.layers)
    hardware = replace(EVEN, tp_size=2, tp_bytes_per_s=32.0)
    found = workload_of_model(replace(SHAPE, layers=layers), hardware)
    assert found.crossover == 2 * (2 + 1) * 1000 // 4


def test_a_context_parallel_group_gathers_keys_and_values_of_the_others() -> None:
    # A layer: 4 s of products; 3 other tokens' 32 numbers of 2 bytes = 192 bytes at 48 bytes/s.
    hardware = replace(EVEN, cp_size=4, cp_bytes_per_s=48.0)
    assert crossover(hardware) == 2 * (4 + 4) * 1000 // 8


def test_layers_without_attention_gather_no_keys() -> None:
    mixed = replace(SHAPE, layers=(*SHAPE.layers, Layer(linear_flops=0, pair_flops=0, kv_width=0)))
    hardware = replace(EVEN, cp_size=4, cp_bytes_per_s=48.0)
    assert workload_of_model(mixed, hardware).crossover == crossover(hardware)


def test_the_parts_of_the_papers_figure_give_its_crossover() -> None:
    """Attention at half the speed of products, and 280 GB/s: products alone cross at 24K tokens,
    with collectives at 44K; the paper's 47,100 have element-wise work in them."""
    shape = shape_of(LLAMA_2_7B)
    gemm, collectives, elementwise, attention = 0.0042, 0.0034, 0.0005, 1.72e-7
    hardware = Hardware(
        gemm_flops=400e12,
        attention_flops=400e12 * (gemm / attention) / 49_408,
        tp_size=8,
        tp_bytes_per_s=280e9,
    )
    alone = replace(hardware, tp_bytes_per_s=float("inf"))
    assert workload_of_model(shape, alone).crossover == pytest.approx(gemm / attention, rel=1e-4)
    together = workload_of_model(shape, hardware).crossover
    assert together == pytest.approx((gemm + collectives) / attention, rel=2e-3)
    assert (gemm + collectives + elementwise) / attention == pytest.approx(47_100, rel=1e-3)


def test_every_kind_of_layers_moves_alike() -> None:
    slow = Hardware(gemm_flops=400e12, attention_flops=200e12)
    found = workload_of_model(shape_of(GEMMA_2_9B), slow, constant=5)
    assert (found.crossover, found.constant) == (48_384, 5)
    assert found.spans == (Span(mask="window", tokens=4096, crossover=48_384),)


def test_crossovers_stay_within_what_integers_hold() -> None:
    assert crossover(replace(EVEN, attention_flops=1e30)) == LARGEST_CROSSOVER
    assert crossover(replace(EVEN, attention_flops=1e-3)) == 1


@pytest.mark.parametrize("name", ["gemm_flops", "attention_flops", "tp_size", "cp_bytes_per_s"])
def test_figures_are_positive(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} is 0; it must be positive"):
        replace(EVEN, **{name: 0})
