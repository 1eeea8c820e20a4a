"""Feed-forward blocks: FLOPs a token, of experts those that a token meets."""

from __future__ import annotations

from packer.shapes.fields import ELSEWHERE, Config, number, numbers, positive

UNGATED = frozenset(
    {
        "apertus",
        "arcee",
        "gpt_neox",
        "nanochat",
        "nemotron",
        "nemotron_h",
        "persimmon",
        "phi",
        "starcoder2",
    }
)
"""Models with two matrices, up and down; all others have a gate beside them."""
_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
_SHARED = ("n_shared_experts", "num_shared_experts", "moe_num_shared_experts")
_SHARED_WIDTHS = ("shared_expert_intermediate_size", "moe_shared_expert_intermediate_size")
_ACTIVE = ("num_experts_per_tok", "experts_per_token", "moe_k")


def feed_forward_flops(config: Config, *, sparse: bool) -> int:
    """Forward FLOPs a token of a feed-forward block, its router included.

    Args:
        config: of the model.
        sparse: whether the block has experts, if the model has any.

    Raises:
        ValueError: experts that are named in a way not known.
    """
    hidden = positive(config, "hidden_size")
    matrices = 2 if config.get("model_type") in UNGATED else 3
    experts = number(config, *_EXPERTS, default=0)
    _check_experts(config, experts)
    shared = number(config, "shared_intermediate_size", default=0)  # Granite: beside everything
    if experts and sparse:
        expert = positive(config, "moe_intermediate_size", "intermediate_size")
        width = positive(config, *_ACTIVE) * expert + shared + _shared_width(config, expert)
        return 2 * hidden * (matrices * width + experts)
    if shared and not experts:
        return 2 * hidden * matrices * shared
    width = positive(config, "intermediate_size_mlp", "intermediate_size")
    return 2 * hidden * matrices * width


def is_sparse(config: Config, layer: int) -> bool:
    """Whether a layer of a model with experts has them; every rule that the config states."""
    last = number(config, "num_hidden_layers") - 1
    listed = numbers(config, "moe_layers")  # Llama 4
    if listed is not None:
        return layer in listed
    end = config.get("moe_layer_end_index")  # Ernie 4.5; -1: the last
    frequency = config.get("moe_layer_freq")  # DeepSeek; in some configs a flag a layer
    if isinstance(frequency, list):
        return bool(frequency[layer])
    return (
        layer not in (numbers(config, "mlp_only_layers") or ())  # Qwen
        and (layer + 1) % positive(config, "decoder_sparse_step", default=1) == 0
        and (layer + 1) % positive(config, "interleave_moe_layer_step", default=1) == 0
        and (layer + 1) % positive(config, "moe_layer_interval", default=1) == 0
        and layer >= number(config, "first_k_dense_replace", default=0)
        and layer % positive(config, "moe_layer_freq", default=1) == 0
        and number(config, "moe_layer_start_index", default=0) <= layer
        and layer <= (last if end in (None, -1) else number(config, "moe_layer_end_index"))
    )


def _shared_width(config: Config, expert: int) -> int:
    """Width of the experts that every token meets."""
    if config.get("model_type") == "llama4_text":
        return expert
    width = number(config, *_SHARED_WIDTHS, default=0)
    return width or expert * number(config, *_SHARED, default=0)


def _check_experts(config: Config, experts: int) -> None:
    """Refuse counts and widths of experts that have a name not known."""
    known = {*_EXPERTS, *_ACTIVE, *_SHARED, *_SHARED_WIDTHS}
    for name, value in config.items():
        is_count = isinstance(value, int) and not isinstance(value, bool) and value > 0
        matters = "shared_expert" in name if experts else "expert" in name and value != 1
        if is_count and matters and name not in known:
            raise ValueError(
                f"the model has {name} = {value}, which is not understood; names that are known: "
                f"{', '.join(sorted(known))}; {ELSEWHERE}"
            )
