"""Figures that a run prints, by pictures that can be checked by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.reference_llama import Sizes
from trainer.batches import padded_rows
from trainer.model_config import ModelConfig
from trainer.optimization import learning_rate
from trainer.settings import OptimizerSettings
from trainer.shape import LayerShape
from trainer.times import compare
from trainer.weights import initial_weight


def test_the_learning_rate_rises_in_a_line_and_falls_in_half_a_cosine() -> None:
    settings = OptimizerSettings(lr=1.0, min_lr=0.5, warmup_steps=2)
    rates = [learning_rate(step, 4, settings) for step in range(4)]
    assert rates == pytest.approx([0.5, 1.0, 1.0, 0.75])
    assert learning_rate(0, 1, OptimizerSettings(lr=2.0)) == 2.0


def test_rows_are_a_multiple_of_tp_and_never_none() -> None:
    assert [padded_rows(tokens, 4) for tokens in (0, 1, 4, 5)] == [4, 4, 4, 8]
    assert [padded_rows(tokens, 1) for tokens in (0, 1, 5)] == [1, 1, 5]


def test_predicted_and_measured_are_compared_by_the_slowest_over_the_mean() -> None:
    # one dp rank, two micro-batches of two cp ranks: slot, predicted, milliseconds
    table = np.array([[[[0, 10.0, 4.0], [0, 10.0, 8.0]], [[1, 5.0, 3.0], [1, 5.0, 5.0]]]])
    figures = compare(table)
    assert figures["predicted"] == {"micro_batch": round(10 / 7.5, 4), "cp_rank": 1.0}
    assert figures["measured"] == {"micro_batch": round(8 / 6.5, 4), "cp_rank": 1.3}
    expected = np.corrcoef([10, 10, 5, 5], [4, 8, 3, 5])[0, 1]
    assert figures["correlation"] == round(expected, 4)
    alike = np.ones((1, 2, 1, 3))
    assert compare(alike)["correlation"] is None


def test_flops_are_six_a_weight_and_token_and_attentions_pairs() -> None:
    layer = LayerShape(hidden=16, heads=4, kv_heads=2, head_dim=4, intermediate=24)
    config = ModelConfig(layer=layer, num_layers=3, vocab_size=50)
    shapes = Sizes(16, 4, 2, 24, 3, 50).parameters()
    weights = sum(
        int(np.prod(shape))
        for name, shape in shapes.items()
        if len(shape) == 2 and not name.startswith("embed")
    )
    assert config.matrix_parameters() == weights
    # scores and their use: 2 x 2 FLOPs a pair, head and dimension; three passes
    assert config.flops(7, 11) == 6 * weights * 7 + 3 * 3 * (4 * 4 * 4 * 11)


def test_first_weights_follow_from_name_and_seed() -> None:
    def draw(name: str, seed: int) -> torch.Tensor:
        return initial_weight(name, torch.Size((40, 50)), seed=seed, std=0.5, layers=8)

    name = "layers.3.mlp.up_proj.weight"
    torch.testing.assert_close(draw(name, 1), draw(name, 1), rtol=0, atol=0)
    assert (draw(name, 1) != draw(name, 2)).any()
    assert (draw(name, 1) != draw("layers.2.mlp.up_proj.weight", 1)).any()
    assert draw(name, 1).std().item() == pytest.approx(0.5, rel=0.1)
    assert draw("layers.3.mlp.down_proj.weight", 1).std().item() == pytest.approx(0.125, rel=0.1)
    norm = initial_weight("norm.weight", torch.Size((5,)), seed=0, std=0.5, layers=8)
    assert norm.tolist() == [1.0] * 5
