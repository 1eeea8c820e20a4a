"""Nemotron-H: layers of one block each, which mixes tokens or feeds them forward."""

from __future__ import annotations

from collections.abc import Sequence

from packer.shapes.feed_forward import feed_forward_flops
from packer.shapes.fields import ELSEWHERE, Config, positive
from packer.shapes.layer import Layer, Mixer
from packer.shapes.mixers import attention, mamba2

MODEL_TYPE = "nemotron_h"
OWN_FIELDS = frozenset({"hybrid_override_pattern", "layers_block_type", "ssm_state_size"})
"""Fields that stand for something else, or nothing, in other models."""
_LETTERS = {"M": "linear_attention", "*": "full_attention", "-": "mlp", "E": "moe"}
_NAMES = {name: name for name in _LETTERS.values()}
_NAMES |= {"mamba": "linear_attention", "attention": "full_attention"}


def one_block_layers(config: Config) -> tuple[Layer, ...]:
    """The layers, by `layers_block_type` or `hybrid_override_pattern`.

    Raises:
        ValueError: neither is there, or a block is not known.
    """
    return tuple(_layer(config, kind) for kind in _blocks(config))


def _blocks(config: Config) -> Sequence[str]:
    listed, names = config.get("layers_block_type"), _NAMES
    if not listed:
        listed, names = config.get("hybrid_override_pattern"), _LETTERS
    if not listed or not all(name in names for name in listed):
        raise ValueError(
            f"the model's blocks are {listed!r}; known are {sorted(names)} in layers_block_type or "
            f"hybrid_override_pattern; {ELSEWHERE}"
        )
    return [names[name] for name in listed]


def _layer(config: Config, kind: str) -> Layer:
    if kind in ("mlp", "moe"):
        flops = feed_forward_flops(config, sparse=kind == "moe")
        return Layer(linear_flops=flops, pair_flops=0, kv_width=0, blocks=1)
    mixer = _mamba(config) if kind == "linear_attention" else _attention(config)
    return Layer(
        linear_flops=mixer.linear_flops,
        pair_flops=mixer.pair_flops,
        kv_width=mixer.kv_width,
        blocks=1,
    )


def _attention(config: Config) -> Mixer:
    head_dim = positive(config, "head_dim", "attention_head_dim")
    return attention({**config, "head_dim": head_dim})


def _mamba(config: Config) -> Mixer:
    heads = positive(config, "mamba_num_heads")
    return mamba2(
        hidden=positive(config, "hidden_size"),
        inner=heads * positive(config, "mamba_head_dim"),
        heads=heads,
        state=positive(config, "ssm_state_size"),
        groups=positive(config, "n_groups", "mamba_n_groups"),
        kernel=positive(config, "conv_kernel", "mamba_d_conv", default=4),
    )
