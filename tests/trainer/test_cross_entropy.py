"""The loss in chunks is the loss, and so are its gradients; logits of all rows are never held."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

from tests.trainer import rank_jobs
from tests.trainer.ranks import run_ranks
from trainer.cross_entropy import cross_entropy_sum

ALONE: Any = SimpleNamespace(size=lambda _: 1, rank=lambda _: 0)


@pytest.mark.parametrize("chunk", [1, 5, 16, 100])
@pytest.mark.parametrize("labels", ["some", "none"])
def test_chunks_give_the_whole(chunk: int, labels: str) -> None:
    seed = torch.Generator().manual_seed(0)
    hidden, weight = (torch.randn(n, 6, generator=seed, dtype=torch.float64) for n in (16, 11))
    wanted = torch.randint(0, 11, (16,), generator=seed)
    wanted[torch.arange(16) % 3 == 0] = -100
    if labels == "none":
        wanted[:] = -100
    inputs = (hidden.requires_grad_(), weight.requires_grad_())
    ours = cross_entropy_sum(hidden, weight, wanted, mesh=ALONE, chunk=chunk)
    theirs = functional.cross_entropy(hidden @ weight.T, wanted, reduction="sum", ignore_index=-100)
    torch.testing.assert_close(ours, theirs, rtol=1e-13, atol=1e-13)
    for found, expected in zip(
        torch.autograd.grad(3 * ours, inputs), torch.autograd.grad(3 * theirs, inputs), strict=True
    ):
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-13)


def test_two_ranks_that_share_the_vocabulary_give_the_whole() -> None:
    for figures in run_ranks(2, rank_jobs.shared_cross_entropy, 4):
        for found, expected in zip(figures[:3], figures[3:], strict=True):
            np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-13)


def test_half_precision_sums_in_float32() -> None:
    seed = torch.Generator().manual_seed(0)
    hidden = torch.randn(400, 6, generator=seed).bfloat16().requires_grad_()
    weight = torch.randn(11, 6, generator=seed).bfloat16().requires_grad_()
    labels = torch.randint(0, 11, (400,), generator=seed)
    loss = cross_entropy_sum(hidden, weight, labels, mesh=ALONE, chunk=1)
    assert loss.dtype == torch.float32
    wide = [tensor.detach().double().requires_grad_() for tensor in (hidden, weight)]
    exact = functional.cross_entropy(wide[0] @ wide[1].T, labels, reduction="sum")
    assert loss.item() == pytest.approx(exact.item(), rel=5e-3)
    found, expected = torch.autograd.grad(loss, weight)[0], torch.autograd.grad(exact, wide[1])[0]
    assert (found.double() - expected).abs().max() < 0.01 * expected.abs().max()
