"""Attention and what stands in its place: FLOPs a token and a pair."""

from __future__ import annotations

from packer.shapes.fields import Config, number, positive
from packer.shapes.layer import Mixer

_OUTPUT_GATES = ("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text")
"""Models whose queries come with a gate of the same width for attention's output."""
STATE_FLOPS = 6
"""An element of a recurrent state a token: decay, update and read, a multiply-add each."""


def attention(config: Config) -> Mixer:
    """Softmax attention of any number of key-value heads, or from latents."""
    if config.get("kv_lora_rank"):
        return latent_attention(config)
    hidden, heads = positive(config, "hidden_size"), positive(config, "num_attention_heads")
    head_dim = positive(config, "head_dim", default=hidden // heads)
    query = heads * head_dim
    key = positive(config, "num_key_value_heads", default=heads) * head_dim
    gated = config.get("attn_output_gate")
    if gated is None:
        gated = config.get("model_type") in _OUTPUT_GATES
    projections = (2 if gated else 1) * query + 2 * key + query  # q (and gate), k and v, output
    return Mixer(linear_flops=2 * hidden * projections, pair_flops=4 * query, kv_width=2 * key)


def latent_attention(config: Config) -> Mixer:
    """Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1), as trained.

    Keys and values are expanded from their latent before attention, as in training; the form that
    absorbs the expansion in the queries is for decoding.
    """
    hidden, heads = positive(config, "hidden_size"), positive(config, "num_attention_heads")
    nope, rope = number(config, "qk_nope_head_dim"), number(config, "qk_rope_head_dim")
    value, latent = positive(config, "v_head_dim"), positive(config, "kv_lora_rank")
    query = heads * (nope + rope)
    query_latent = number(config, "q_lora_rank", default=0)
    weights = query_latent * (hidden + query) if query_latent else hidden * query
    weights += hidden * (latent + rope) + latent * heads * (nope + value)  # down and up
    weights += heads * value * hidden  # output
    return Mixer(
        linear_flops=2 * weights,
        pair_flops=2 * (query + heads * value),
        kv_width=query + heads * value,
    )


def recurrent(config: Config) -> Mixer:
    """What has a state in the place of attention: a delta net or Mamba-2, by the fields given."""
    if config.get("mamba_d_state") and not config.get("linear_num_value_heads"):
        return _mamba2_of_granite(config)
    return delta_net(config)


def delta_net(config: Config) -> Mixer:
    """The gated delta rule of Qwen3-Next and Qwen3.5: linear in tokens.

    Projections to queries, keys, values, output gates and two gates a value head; a short
    convolution over the first three; the state of key x value numbers a value head. The state is
    counted as a recurrence; the chunked form that kernels use does somewhat more.
    """
    hidden = positive(config, "hidden_size")
    value_heads = positive(config, "linear_num_value_heads")
    key_dim = positive(config, "linear_key_head_dim")
    value_dim = positive(config, "linear_value_head_dim")
    key = positive(config, "linear_num_key_heads") * key_dim
    value = value_heads * value_dim
    weights = hidden * (2 * key + 2 * value + 2 * value_heads) + value * hidden
    weights += positive(config, "linear_conv_kernel_dim", default=4) * (2 * key + value)
    state = value_heads * key_dim * value_dim
    return Mixer(linear_flops=2 * weights + STATE_FLOPS * state)


def mamba2(*, hidden: int, inner: int, heads: int, state: int, groups: int, kernel: int) -> Mixer:
    """Mamba-2 (arXiv 2405.21060): linear in tokens.

    Projections to gate, inputs, B, C and a step a head; a short convolution over inputs, B and C;
    the state of inputs x `state` numbers.
    """
    shared = 2 * groups * state  # B and C
    weights = hidden * (2 * inner + shared + heads) + inner * hidden
    weights += kernel * (inner + shared)
    return Mixer(linear_flops=2 * weights + STATE_FLOPS * inner * state)


def _mamba2_of_granite(config: Config) -> Mixer:
    hidden = positive(config, "hidden_size")
    return mamba2(
        hidden=hidden,
        inner=positive(config, "mamba_expand", default=2) * hidden,
        heads=positive(config, "mamba_n_heads"),
        state=positive(config, "mamba_d_state"),
        groups=positive(config, "mamba_n_groups", default=1),
        kernel=positive(config, "mamba_d_conv", default=4),
    )
