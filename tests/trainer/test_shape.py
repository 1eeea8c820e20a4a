"""Layer shapes out of config.json: Llama's kind is read, all else is refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from tests.model_shapes import LLAMA_2_7B, LLAMA_3_8B
from trainer.errors import TrainerError
from trainer.shape import LayerShape, layer_shape


def test_dimensions_are_read_or_follow() -> None:
    shape = LayerShape(hidden=4096, heads=32, kv_heads=8, head_dim=128, intermediate=14_336)
    assert layer_shape(LLAMA_3_8B) == shape
    assert layer_shape({"text_config": LLAMA_3_8B, "vision_config": {}}) == shape
    assert layer_shape({**LLAMA_2_7B, "num_key_value_heads": None}).kv_heads == 32
    assert layer_shape({**LLAMA_3_8B, "head_dim": 64}).head_dim == 64
    assert layer_shape({**LLAMA_3_8B, "model_type": "qwen3", "hidden_size": 2048}).head_dim == 128


def test_a_tensor_parallel_rank_has_a_share_of_heads_and_width() -> None:
    assert layer_shape(LLAMA_3_8B).share(4) == LayerShape(
        hidden=4096, heads=8, kv_heads=2, head_dim=128, intermediate=3584, tp_size=4
    )
    for tp_size in (0, 3, 16):
        with pytest.raises(TrainerError, match=f"tp_size is {tp_size}.*must divide"):
            layer_shape(LLAMA_3_8B).share(tp_size)


def test_a_window_counts_where_the_model_uses_it() -> None:
    window = {"sliding_window": 4096}
    for unused in (
        {"model_type": "qwen2", **window},
        {"model_type": "qwen3", **window, "use_sliding_window": False},
        {"model_type": "mistral", "sliding_window": None},
    ):
        layer_shape({**LLAMA_3_8B, **unused})
    for used in (
        {"model_type": "mistral", **window},
        {"model_type": "qwen2", **window, "use_sliding_window": True},
    ):
        with pytest.raises(TrainerError, match="sliding window of 4096"):
            layer_shape({**LLAMA_3_8B, **used})


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"model_type": "mixtral"}, "model_type is 'mixtral'; known are granite, llama"),
        ({"model_type": None}, "model_type is None"),
        ({"num_local_experts": 8}, "num_local_experts .experts."),
        ({"kv_lora_rank": 512}, "latent attention"),
        ({"layer_types": ["full_attention", "linear_attention"]}, "linear_attention"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'"),
        ({"hidden_size": None}, "hidden_size is None"),
        ({"intermediate_size": "wide"}, "intermediate_size is 'wide'"),
        ({"num_attention_heads": 0}, "num_attention_heads is 0"),
        ({"num_key_value_heads": 5}, "num_key_value_heads 5 does not divide"),
        ({"head_dim": 63}, "head_dim is 63"),
        ({"text_config": 3}, "text_config is 3"),
    ],
)
def test_other_layers_are_refused(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(TrainerError, match=says):
        layer_shape({**LLAMA_3_8B, **fields})
