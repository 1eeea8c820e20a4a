"""A whole model's dimensions from its `config.json`; `trainer.shape` reads those of a layer."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.shard.json_files import read_object
from trainer.errors import TrainerError
from trainer.shape import LayerShape, layer_shape, whole_number

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
    rope, scaling = _positions(config, "rope_parameters"), _positions(config, "rope_scaling")
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
        num_layers=whole_number(config, "num_hidden_layers"),
        vocab_size=whole_number(config, "vocab_size"),
        rope_theta=_number("rope_theta", theta),
        rms_norm_eps=_number("rms_norm_eps", config.get("rms_norm_eps", 1e-5)),
        initializer_range=_number("initializer_range", config.get("initializer_range", 0.02)),
    )


def _positions(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """What is said of rotary positions, the same for all layers."""
    found = config.get(name) or {}
    if not isinstance(found, Mapping) or any(isinstance(part, Mapping) for part in found.values()):
        raise TrainerError(f"the model's {name} is {found!r}; it must be one object for all layers")
    return found


def _number(name: str, value: Any) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 < value <= sys.float_info.max:
        raise TrainerError(f"the model's {name} is {value!r}; it must be a positive, finite number")
    return float(value)
