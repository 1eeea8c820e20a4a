"""The dimensions of a decoder layer, from a model's `config.json`.

Read are layers as Llama has them: RMSNorm, rotary positions, attention of any number of key-value
heads over the whole piece, a gated feed-forward block. Anything else is refused, since it would be
measured wrongly.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from trainer.errors import TrainerError

MODEL_TYPES = ("granite", "llama", "mistral", "phi3", "qwen2", "qwen3")
"""Models whose layers are such, up to biases and norms of heads."""
_OTHER_LAYERS = {
    "kv_lora_rank": "multi-head latent attention",
    "moe_num_experts": "experts",
    "n_routed_experts": "experts",
    "num_experts": "experts",
    "num_local_experts": "experts",
}
_WINDOW_IS_OFF_UNLESS_SAID = ("qwen2", "qwen3")


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerShape:
    """One layer, or a tensor-parallel rank's share of it."""

    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    """Width of the feed-forward block."""
    tp_size: int = 1
    """Ranks that share the layer; `heads`, `kv_heads` and `intermediate` are one's share."""

    def share(self, tp_size: int) -> LayerShape:
        """What one of `tp_size` ranks has of the whole layer.

        Raises:
            TrainerError: something does not divide.
        """
        for name in ("heads", "kv_heads", "intermediate"):
            if tp_size < 1 or getattr(self, name) % tp_size:
                raise TrainerError(
                    f"tp_size is {tp_size}, the layer's {name} {getattr(self, name)}; tp_size must "
                    "divide heads, kv_heads and intermediate"
                )
        return LayerShape(
            hidden=self.hidden,
            heads=self.heads // tp_size,
            kv_heads=self.kv_heads // tp_size,
            head_dim=self.head_dim,
            intermediate=self.intermediate // tp_size,
            tp_size=tp_size,
        )

    def as_dict(self) -> dict[str, int]:
        return asdict(self)


def layer_shape(config: Mapping[str, Any]) -> LayerShape:
    """The shape of a model's layers, which are all alike.

    Args:
        config: of `config.json`; of multimodal models the text part is read.

    Raises:
        TrainerError: a field is missing, or the layers are of another kind.
    """
    text = config.get("text_config", config)
    if not isinstance(text, Mapping):
        raise TrainerError(f"the model's text_config is {text!r}, not an object")
    _check_kind(text)
    hidden, heads = whole_number(text, "hidden_size"), whole_number(text, "num_attention_heads")
    kv_heads = whole_number(text, "num_key_value_heads", heads)
    head_dim = 128 if text.get("model_type") == "qwen3" else hidden // heads
    if heads % kv_heads:
        raise TrainerError(
            f"the model's num_key_value_heads {kv_heads} does not divide its num_attention_heads "
            f"{heads}"
        )
    head_dim = whole_number(text, "head_dim", head_dim)
    if head_dim % 2:
        raise TrainerError(f"the model's head_dim is {head_dim}; rotary positions need it even")
    return LayerShape(
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        intermediate=whole_number(text, "intermediate_size"),
    )


def _check_kind(config: Mapping[str, Any]) -> None:
    model_type = config.get("model_type")
    if model_type not in MODEL_TYPES:
        raise TrainerError(
            f"the model's model_type is {model_type!r}; known are {', '.join(MODEL_TYPES)}, whose "
            'layers are alike: write "llama" there if its layers are Llama\'s'
        )
    for name, what in _OTHER_LAYERS.items():
        if (config.get(name) or 0) not in (0, 1):
            raise TrainerError(f"the model has {name} ({what}); only dense Llama-like layers run")
    window = config.get("use_sliding_window", model_type not in _WINDOW_IS_OFF_UNLESS_SAID)
    if config.get("sliding_window") and window:
        raise TrainerError(
            f"the model has a sliding window of {config['sliding_window']} tokens; only layers "
            "that see the whole piece run"
        )
    kinds = config.get("layer_types") or []
    for kind in kinds if isinstance(kinds, list) else [kinds]:
        if kind != "full_attention":
            raise TrainerError(f"the model has layers of kind {kind!r}; only full_attention")
    if config.get("hidden_act") not in (None, "silu", "swish"):
        raise TrainerError(f"the model's hidden_act is {config['hidden_act']!r}; it must be silu")


def whole_number(config: Mapping[str, Any], name: str, default: int | None = None) -> int:
    """A field of `config.json` that counts something.

    Raises:
        TrainerError: it is missing, of another type, or below 1.
    """
    value = config.get(name)
    value = default if value is None else value
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise TrainerError(f"the model's {name} is {value!r}; it must be a whole number, 1 or more")
    return value
