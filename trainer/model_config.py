"""A whole model's dimensions from its `config.json`; `trainer.shape` reads those of a layer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.shard.json_files import read_object
from trainer.errors import TrainerError
from trainer.shape import LayerShape, layer_shape

TRAINED = ("llama", "mistral")
"""Models that are built exactly; others differ by biases, norms of heads or factors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """A Llama-like model: all layers alike, embedding and head of their own weights."""

    layer: LayerShape
    num_layers: int
    vocab_size: int
    rope_theta: float = 10_000.0
    rms_norm_eps: float = 1e-5
    initializer_range: float = 0.02

    def matrix_parameters(self) -> int:
        """Weights that every token is multiplied with: all but embedding and norms."""
        shape = self.layer
        attention = 2 * shape.hidden * shape.head_dim * (shape.heads + shape.kv_heads)
        feed_forward = 3 * shape.hidden * shape.intermediate
        return self.num_layers * (attention + feed_forward) + self.vocab_size * shape.hidden

    def flops(self, tokens: int, pairs: int) -> int:
        """FLOPs of a forward and a backward pass, without what is computed again.

        Args:
            tokens: of the step.
            pairs: queries times the keys that they see, summed over the tokens.
        """
        attention = 4 * self.num_layers * self.layer.heads * self.layer.head_dim * pairs
        return 3 * (2 * self.matrix_parameters() * tokens + attention)


def read_model_config(path: Path) -> ModelConfig:
    """The model that a `config.json` describes.

    Raises:
        TrainerError: it cannot be read, or describes something that is not built here.
    """
    try:
        return model_config(read_object(path))
    except ValueError as error:
        raise TrainerError(f"{path}: {error}") from error


def model_config(config: Mapping[str, Any]) -> ModelConfig:
    """As `read_model_config`, from the object."""
    shape = layer_shape(config)
    if config.get("model_type") not in TRAINED:
        raise TrainerError(
            f"the trainer builds {' and '.join(TRAINED)}, not {config.get('model_type')!r}, whose "
            "layers have parts that it lacks"
        )
    rope = config.get("rope_parameters") or {}
    scaling = config.get("rope_scaling") or {}
    kind = scaling.get("rope_type", scaling.get("type", rope.get("rope_type", "default")))
    for name, value, allowed in (
        ("tie_word_embeddings", config.get("tie_word_embeddings", False), False),
        ("attention_bias", config.get("attention_bias", False), False),
        ("mlp_bias", config.get("mlp_bias", False), False),
        ("rope_type", kind, "default"),
    ):
        if value != allowed:
            raise TrainerError(f"the model's {name} is {value!r}; the trainer builds {allowed!r}")
    theta = config.get("rope_theta", rope.get("rope_theta", 10_000.0))
    return ModelConfig(
        layer=shape,
        num_layers=_number(config, "num_hidden_layers", int),
        vocab_size=_number(config, "vocab_size", int),
        rope_theta=_number({"rope_theta": theta}, "rope_theta", float),
        rms_norm_eps=_number(config, "rms_norm_eps", float, 1e-5),
        initializer_range=_number(config, "initializer_range", float, 0.02),
    )


def _number(config: Mapping[str, Any], name: str, kind: type, default: Any = None) -> Any:
    value = config.get(name, default)
    kinds = (int,) if kind is int else (int, float)
    if isinstance(value, bool) or not isinstance(value, kinds) or value <= 0:
        raise TrainerError(
            f"the model's {name} is {value!r}; it must be a positive {kind.__name__}"
        )
    return kind(value)
