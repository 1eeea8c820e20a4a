"""1F1B by itself: gradients of toy stages, and what it refuses to send."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.trainer import rank_jobs
from tests.trainer.ranks import run_ranks
from trainer.schedule import Wire

CASES = [(3,), (2, 5), (1, 7, 4), (6, 1, 1, 9), (2, 8, 3, 1, 5), (4, 1, 6, 2, 7, 3, 9)]
"""Rows of each micro-batch; fewer micro-batches than stages, as many, and more."""


@pytest.mark.parametrize("num_stages", [1, 2, 4])
def test_any_number_of_micro_batches_of_any_length_gives_the_gradients_of_one_process(
    num_stages: int,
) -> None:
    for figures in run_ranks(4, rank_jobs.pipeline_grid, num_stages, CASES):
        assert len(figures) == 2 * len(CASES)
        for ours, theirs in zip(figures[::2], figures[1::2], strict=True):
            assert ours == pytest.approx(theirs, rel=1e-13)


@pytest.mark.parametrize("tensor", [torch.zeros(5, 3), torch.zeros(4, 3, dtype=torch.float64)])
def test_a_shape_or_type_that_the_plan_does_not_say_is_never_sent(tensor: torch.Tensor) -> None:
    mesh: Any = SimpleNamespace(is_first_stage=True, is_last_stage=False)
    wire = Wire(mesh=mesh, shapes=[(4, 3)], dtype=torch.float32)
    with pytest.raises(AssertionError, match="the plan says"):
        wire.move(activation=(0, tensor))
