"""Which kind every layer is: what it sees of its piece, and by what means."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from packer.shapes.fields import ELSEWHERE, Config, number, numbers, positive

FULL, WINDOW, CHUNK = "full_attention", "sliding_attention", "chunked_attention"
LINEAR = "linear_attention"
_NAMES = {kind: kind for kind in (FULL, WINDOW, CHUNK, LINEAR)}
_NAMES |= {"attention": FULL, "mamba": LINEAR}

_EVERY_LAYER = ("mistral", "mixtral", "phi3", "phimoe", "starcoder2", "qwen3_moe")
"""Models whose `sliding_window`, where it is set, holds in all layers."""
_PATTERNS = {"gemma2": 2, "gpt_oss": 2, "gemma3_text": 6, "cohere2": 4}
"""Models of which every so many-th layer sees everything and the others a window."""
_INTERVALS = ("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text")
"""Models of which every `full_attention_interval`-th layer is attention, the others linear."""


def kinds_of_layers(config: Config) -> Sequence[str]:
    """The kind of each layer: by `layer_types`, else by the model's own rule.

    Raises:
        ValueError: a kind that is not known, or a window without a word which layers have it.
    """
    layers = range(positive(config, "num_hidden_layers"))
    listed = config.get("layer_types")
    if listed is not None:
        unknown = sorted({str(name) for name in listed} - set(_NAMES))
        if unknown or len(listed) != len(layers):
            found = f"holds {unknown}" if unknown else f"has {len(listed)} entries"
            raise ValueError(
                f"the model's layer_types {found}; known are {sorted(_NAMES)}, one for each of "
                f"{len(layers)} layers; {ELSEWHERE}"
            )
        return [_NAMES[name] for name in listed]
    return [_rule(config)(layer) for layer in layers]


def _rule(config: Config) -> Callable[[int], str]:
    """The kind of a layer by its number, where the config does not list kinds."""
    name = str(config.get("model_type"))
    if name == "llama4_text":
        rotary = numbers(config, "no_rope_layers")  # 1: rotary positions, and so chunks
        every = positive(config, "no_rope_layer_interval", default=4)
        if rotary is not None:
            return lambda layer: CHUNK if rotary[layer] else FULL
        return lambda layer: CHUNK if (layer + 1) % every else FULL
    if name in _INTERVALS:
        every = positive(config, "full_attention_interval", default=4)
        return lambda layer: LINEAR if (layer + 1) % every else FULL
    if name == "bamba":
        attends = numbers(config, "attn_layer_indices") or ()
        return lambda layer: FULL if layer in attends else LINEAR
    if not window_of(config):
        return lambda _: FULL
    if name in _PATTERNS or config.get("sliding_window_pattern") is not None:
        every = positive(config, "sliding_window_pattern", default=_PATTERNS.get(name))
        return lambda layer: WINDOW if (layer + 1) % every else FULL
    if name in ("qwen2", "qwen3"):
        first = number(config, "max_window_layers")
        return lambda layer: WINDOW if layer >= first else FULL
    if name == "qwen2_moe":
        stop = number(config, "max_window_layers")
        return lambda layer: WINDOW if layer < stop and (layer + 1) % 2 else FULL
    if name in _EVERY_LAYER:
        return lambda _: WINDOW
    raise ValueError(
        f"the model ({name}) has sliding_window = {window_of(config)} but no layer_types, and "
        f"which layers have it is not known; add layer_types to its config, or {ELSEWHERE}"
    )


def window_of(config: Config) -> int:
    """Tokens of the sliding window; 0 where there is none."""
    if config.get("use_sliding_window") is False:
        return 0
    return number(config, "sliding_window", default=0)


def mask_of(config: Config, kind: str) -> tuple[str, int]:
    """Mask and span of a layer with attention.

    Raises:
        ValueError: the config does not say how long the span is.
    """
    if kind == WINDOW:
        return "window", positive(config, "sliding_window")
    if kind == CHUNK:
        return "chunk", positive(config, "attention_chunk_size")
    return "full", 0
