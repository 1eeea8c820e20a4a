"""What a layer costs, in numbers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixer:
    """The part of a layer in which tokens meet one another."""

    linear_flops: int
    """Forward, a token: projections, or all of a linear attention."""
    pair_flops: int = 0
    """Forward, a query-key pair."""
    kv_width: int = 0
    """Numbers of keys and values a token, as attention reads them; 0: no attention."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """A decoder layer."""

    linear_flops: int
    """Forward, a token: everything but attention's pairs."""
    pair_flops: int
    """Forward, a query-key pair."""
    kv_width: int
    """Numbers of keys and values a token; 0: no attention."""
    mask: str = "full"
    """What a query sees of its piece: "full", "window" or "chunk"."""
    span: int = 0
    """Tokens of the window or chunk."""
    blocks: int = 2
    """Blocks with a residual around each: a mixer and a feed-forward, or one of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """A decoder's layers, in order."""

    hidden_size: int
    layers: tuple[Layer, ...]

    @property
    def linear_flops(self) -> int:
        """Forward, a token, all layers."""
        return sum(layer.linear_flops for layer in self.layers)
