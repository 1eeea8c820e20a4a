"""A model's layers to a workload: by FLOPs alone, or by the time that they take on a cluster.

By FLOPs alone attention and matrix products run at one speed and nothing is ever sent. On GPUs
attention reaches about half the FLOP/s of large matrix products, and tensor parallelism sends every
token around; the two work against one another. For Llama-2-7B on 16 H100s WLB-LLM (arXiv
2503.17924, Figure 7) measured, in one unit a token, matrix products 0.0042, collectives 0.0034,
element-wise work 0.0005, and attention 1.72e-7 d^2 a piece: products alone cross attention at 24K
tokens, all of it at 47,100. FLOPs say 49,408, by luck.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from packer.shapes.layer import Layer, ModelShape
from packer.workload import LARGEST_CROSSOVER, Span, Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """What one GPU reaches and how a layer is spread; all figures achieved, not peak.

    Modelled of a layer's forward pass, for one token of a rank: its matrix products over `tp_size`
    GPUs; with tensor and sequence parallelism an all-gather and a reduce-scatter of the hidden
    state around each of its blocks, two mostly; with context parallelism the keys and values of
    the `cp_size` - 1 other tokens that the group takes in meanwhile, gathered by all layers with
    attention. Nothing overlaps; give a bandwidth that is larger by what does. Not modelled:
    element-wise work, the exchange of experts, the gathering of parameters (constant for a
    micro-batch: `constant_tokens`). A profile has all of it.

    The backward pass costs matrix products and collectives twice the forward one, attention about
    2.5 times, since it computes scores again. `attention_flops` measured over both passes, counting
    three times the forward FLOPs, has that in it.

    Args:
        gemm_flops: FLOP/s of matrix products, a GPU.
        attention_flops: FLOP/s of causal attention, a GPU, counting the pairs that the mask leaves.
        tp_size: tensor-parallel GPUs, with sequence parallelism.
        cp_size: context-parallel ranks.
        tp_bytes_per_s: that a GPU receives in collectives of its tensor-parallel group; infinite
            where sending is not to count.
        cp_bytes_per_s: the same of its context-parallel group.
        element_bytes: of an activation.
    """

    gemm_flops: float
    attention_flops: float
    tp_size: int = 1
    cp_size: int = 1
    tp_bytes_per_s: float = float("inf")
    cp_bytes_per_s: float = float("inf")
    element_bytes: int = 2

    def __post_init__(self) -> None:
        speeds = ("gemm_flops", "attention_flops", "tp_bytes_per_s", "cp_bytes_per_s")
        for name in (*speeds, "tp_size", "cp_size", "element_bytes"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be positive")

    def linear_time(self, shape: ModelShape) -> float:
        """Seconds of a rank's token in everything but attention, all layers, forward."""
        return sum(self._layer_time(shape.hidden_size, layer) for layer in shape.layers)

    def pair_time(self, flops: int) -> float:
        """Seconds of the FLOPs of a query-key pair, forward."""
        return flops / (self.tp_size * self.attention_flops)

    def _layer_time(self, hidden_size: int, layer: Layer) -> float:
        products = layer.linear_flops / (self.tp_size * self.gemm_flops)
        sent = 2 * layer.blocks * hidden_size * self.element_bytes  # gathered and scattered
        state = sent * (self.tp_size - 1) / self.tp_size
        keys = layer.kv_width * self.element_bytes * (self.cp_size - 1) / self.tp_size
        return products + state / self.tp_bytes_per_s + keys / self.cp_bytes_per_s


def workload_of_model(
    shape: ModelShape, hardware: Hardware | None = None, *, constant: int = 0
) -> Workload:
    """The workload model of a decoder: a crossover for each kind of attention that it has.

    A kind's attention takes c/2 a token and key of a piece, c the cost of a pair in its layers, so
    that L = 2 x linear cost of a token / c. For a dense model of one kind, hidden size h, key-value
    width k, feed-forward width f and query width h, that is 2h + 2k + 3f.

    Args:
        shape: of the model.
        hardware: what it runs on; None for FLOPs alone.
        constant: as in `Workload`.
    """
    pairs: dict[tuple[str, int], int] = {}
    for layer in shape.layers:
        if layer.pair_flops:
            kind = (layer.mask, layer.span)
            pairs[kind] = pairs.get(kind, 0) + layer.pair_flops
    crossovers = {kind: _crossover(shape, flops, hardware) for kind, flops in pairs.items()}
    return Workload(
        crossover=crossovers.pop(("full", 0), None),
        spans=_spans(crossovers),
        constant=constant,
    )


def _crossover(shape: ModelShape, pair_flops: int, hardware: Hardware | None) -> int:
    if hardware is None:
        crossover = 2 * shape.linear_flops // pair_flops
    else:
        crossover = int(2 * hardware.linear_time(shape) / hardware.pair_time(pair_flops))
    return min(max(1, crossover), LARGEST_CROSSOVER)


def _spans(crossovers: Mapping[tuple[str, int], int]) -> tuple[Span, ...]:
    return tuple(
        Span(mask=mask, tokens=span, crossover=crossover)
        for (mask, span), crossover in sorted(crossovers.items())
    )
