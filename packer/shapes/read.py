"""A `config.json` to a `ModelShape`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from packer.shapes import kinds, mixers
from packer.shapes.feed_forward import feed_forward_flops, is_sparse
from packer.shapes.fields import ELSEWHERE, Config, positive
from packer.shapes.layer import Layer, ModelShape
from packer.shapes.one_block import MODEL_TYPE, OWN_FIELDS, one_block_layers

_DEFAULTS: dict[str, dict[str, Any]] = {
    "cohere2": {"sliding_window": 4096},
    "gemma2": {"head_dim": 256, "sliding_window": 4096},
    "gemma3_text": {
        "head_dim": 256,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "sliding_window": 4096,
    },
    "gpt_oss": {"head_dim": 64, "sliding_window": 128},
    "llama4_text": {"attention_chunk_size": 8192, "intermediate_size_mlp": 16_384},
    "qwen2": {"use_sliding_window": False},
    "qwen2_moe": {"use_sliding_window": False},
    "qwen3": {"head_dim": 128, "use_sliding_window": False},
    "qwen3_moe": {"use_sliding_window": False},
    "qwen3_next": {"head_dim": 256},
    "qwen3_5_text": {"head_dim": 256},
    "qwen3_5_moe_text": {"head_dim": 256},
}
"""What published configs of these models leave out, since it is their class's default."""
_NOT_UNDERSTOOD = {
    "attn_layer_period": "Jamba's layers",
    "attn_type_list": "lightning attention",
    "attention_types": "GPT-Neo's layers",
    "block_types": "recurrent blocks",
    "cross_attention_layers": "cross-attention",
    "ffn_config": "DBRX's names",
    "global_head_dim": "heads of two sizes",
    "hybrid_layer_pattern": "layers of two kinds of heads",
    "hybrid_override_pattern": "layers of one block each",
    "layers_block_type": "layers of one block each",
    "index_topk": "sparse attention by an indexer",
    "linear_attn_config": "Kimi's linear attention",
    "lru_width": "recurrent blocks",
    "moe_latent_size": "experts on latents",
    "num_kv_shared_layers": "layers that share keys",
    "ssm_cfg": "Mamba's names",
    "ssm_state_size": "Nemotron-H's names",
    "state_size": "Mamba's names",
}
"""Fields of models whose cost would be read wrongly, and what they stand for."""


def shape_of(config: Mapping[str, Any]) -> ModelShape:
    """What a model's layers cost, from its `config.json`.

    Known are decoders that use the names of Llama: dense, of any number of key-value heads; with
    experts (Mixtral, Qwen, DeepSeek, GLM, Ernie, Granite, gpt-oss, Llama 4); multi-head latent
    attention; sliding windows and chunks, by `layer_types` or the model's own rule; linear
    attention of Qwen3-Next, Mamba-2 of Granite, Bamba and Nemotron-H. A `model_type` that is not
    known is read by the names of its fields. Of multimodal models the text part is read.

    Raises:
        ValueError: a field is missing, or stands for something that would be read wrongly.
    """
    text = config.get("text_config", config)
    if not isinstance(text, Mapping):
        raise ValueError(f"the model's text_config is {text!r}, not an object; {ELSEWHERE}")
    given = {name: value for name, value in text.items() if value is not None}
    whole = _DEFAULTS.get(str(text.get("model_type")), {}) | given
    layers = _layers(_checked(whole))
    return ModelShape(hidden_size=positive(whole, "hidden_size"), layers=layers)


def _checked(config: Config) -> Config:
    if config.get("is_encoder_decoder"):
        raise ValueError(f"the model has an encoder, and its pieces no causal mask; {ELSEWHERE}")
    own = OWN_FIELDS if config.get("model_type") == MODEL_TYPE else ()
    for name, what in _NOT_UNDERSTOOD.items():
        if config.get(name) and name not in own:
            raise ValueError(f"the model has {name} ({what}), which is not understood; {ELSEWHERE}")
    return config


def _layers(config: Config) -> tuple[Layer, ...]:
    if config.get("model_type") == MODEL_TYPE:
        return one_block_layers(config)
    found = kinds.kinds_of_layers(config)
    if kinds.LINEAR not in found and any(name.startswith("mamba_") for name in config):
        raise ValueError(f"the model has Mamba, but it is not said in which layers; {ELSEWHERE}")
    return tuple(_layer(config, layer, kind) for layer, kind in enumerate(found))


def _layer(config: Config, number: int, kind: str) -> Layer:
    mixer = mixers.recurrent(config) if kind == kinds.LINEAR else mixers.attention(config)
    forward = feed_forward_flops(config, sparse=is_sparse(config, number))
    mask, span = kinds.mask_of(config, kind)
    return Layer(
        linear_flops=mixer.linear_flops + forward,
        pair_flops=mixer.pair_flops,
        kv_width=mixer.kv_width,
        mask=mask,
        span=span,
    )
