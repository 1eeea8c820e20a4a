"""One layer by itself: the model's own, and its FLOPs as they are run."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from trainer.attention_kernels import reference
from trainer.layer_run import layer_flops, layer_ms
from trainer.shape import LayerShape

SHAPE = LayerShape(hidden=8, heads=4, kv_heads=2, head_dim=4, intermediate=24)


def gradients(pieces: list[int], **changes: Any) -> tuple[torch.Tensor, ...]:
    """What the timed call gives: of the input, then of each weight."""
    found: list[tuple[torch.Tensor, ...]] = []

    def median_ms(call: Callable[[], tuple[torch.Tensor, ...]]) -> float:
        found.append(call())
        return 3.0

    clock: Any = SimpleNamespace(device=torch.device("cpu"), median_ms=median_ms)
    options: Any = {"attend": reference, "clock": clock, "dtype": torch.float32, **changes}
    torch.manual_seed(0)
    assert layer_ms(SHAPE, pieces, **options) == 3.0
    return found[0]


def test_flops_are_products_and_causal_pairs_three_times() -> None:
    weights = 8 * 16 + 2 * 8 * 8 + 16 * 8 + 3 * 8 * 24
    assert layer_flops(SHAPE, [1]) == 3 * (2 * weights + 4 * 16)
    assert layer_flops(SHAPE, [3, 2]) == 3 * (2 * weights * 5 + 4 * 16 * (6 + 3))


class Products(TorchDispatchMode):
    """Counts the FLOPs of matrix products as they are run."""

    flops = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.mm.default:
            (rows, inner), (_, columns) = (matrix.shape for matrix in args)
            self.flops += 2 * rows * inner * columns
        return func(*args, **(kwargs or {}))


def test_the_products_that_run_are_the_ones_that_are_counted() -> None:
    with Products() as counter:
        gradients([5, 7])
    attention = 3 * 4 * 16 * (5 * 6 // 2 + 7 * 8 // 2)
    assert counter.flops == layer_flops(SHAPE, [5, 7]) - attention


def test_the_call_is_forward_and_backward_of_input_and_weights() -> None:
    found = gradients([5, 7])
    sizes = sorted(tuple(gradient.shape) for gradient in found[1:])
    assert found[0].shape == (12, 8)
    assert sizes == sorted(
        [(8,), (8,), (16, 8), (8, 8), (8, 8), (8, 16), (24, 8), (24, 8), (8, 24)]
    )
    assert all(gradient.abs().sum() > 0 for gradient in found)


def test_pieces_do_not_see_one_another() -> None:
    """A border inside the second piece changes the gradient of that piece's tokens alone."""
    two, three = (gradients(pieces)[0] for pieces in ([5, 7], [5, 4, 3]))
    assert torch.equal(two[:5], three[:5])
    assert not torch.allclose(two[5:], three[5:])
