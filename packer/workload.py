"""What a piece costs.

Under a causal mask inside each piece, the work of d tokens has a part that grows with d (matrix
products, element-wise work, communication) and one that grows with d squared (attention). Where
both are equal is the crossover length L*, and in linear-token equivalents

    W(d) = d + d^2 / L*

(WLB-LLM, arXiv 2503.17924, equation 2, with the linear part as unit). Planners need integers to be
the same everywhere, so W is kept in 1/256 of a unit and rounded once a piece.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

SCALE = 256
"""Integer workload of one linear-token equivalent."""
LONGEST_PIECE = 1 << 26
"""Tokens of the longest piece whose workload is sure to fit int64 arithmetic."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """The quadratic workload model.

    Args:
        crossover: L*, the length in tokens at which attention costs as much as all the rest.
        constant: what each micro-batch costs by itself, in 1/256 of a linear-token equivalent.
    """

    crossover: int
    constant: int = 0

    def __post_init__(self) -> None:
        if not 1 <= self.crossover <= LONGEST_PIECE or self.constant < 0:
            raise ValueError(
                f"crossover is {self.crossover} and constant {self.constant}; the crossover must "
                f"be 1..{LONGEST_PIECE} tokens and the constant not negative"
            )

    def of(self, tokens: np.ndarray) -> np.ndarray:
        """The workload of pieces, int64, same shape.

        Args:
            tokens: length of each piece, integers.

        Raises:
            ValueError: a piece longer than `LONGEST_PIECE`.
        """
        length = np.asarray(tokens, dtype=np.int64)
        if length.size and int(length.max()) > LONGEST_PIECE:
            raise ValueError(
                f"a piece of {int(length.max())} tokens; the longest allowed has {LONGEST_PIECE}"
            )
        return length * SCALE + (length * length * SCALE + self.crossover // 2) // self.crossover


def crossover_of(config: dict[str, Any]) -> int:
    """L* of a dense decoder from its Hugging Face `config.json`.

    Forward FLOPs of a layer a token: 4h^2 + 4hk for the attention projections and 6hf for SwiGLU,
    with hidden size h, key-value width k and feed-forward width f; attention itself takes 2hd for
    the d/2 keys that an average query sees. Equal at d = 2h + 2k + 3f when the query width is h.

    Raises:
        ValueError: a field is missing, or the model is not dense.
    """
    experts = (
        config.get("num_experts")
        or config.get("num_local_experts")
        or config.get("n_routed_experts")
    )
    if experts:
        raise ValueError(
            f"the model has {experts} experts; only dense models give a crossover, set "
            "workload.crossover instead"
        )
    try:
        hidden, heads = int(config["hidden_size"]), int(config["num_attention_heads"])
        feed_forward = int(config["intermediate_size"])
    except KeyError as error:
        raise ValueError(
            f"the model's config has no {error}; set workload.crossover instead"
        ) from None
    head_dim = int(config.get("head_dim") or hidden // heads)
    query_width = heads * head_dim
    key_value_width = int(config.get("num_key_value_heads") or heads) * head_dim
    linear = 4 * hidden * (query_width + key_value_width) + 6 * hidden * feed_forward
    return max(1, linear // (2 * query_width))
