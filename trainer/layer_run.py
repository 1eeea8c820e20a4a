"""One layer of the trainer's model, forward and backward, as the only rank runs it.

`trainer.layer_times` measures a layer's halves apart, which is what a planner needs. This is the
layer itself, so its FLOPs over its time say how far a device is from its peak.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn

from trainer.attention_kernels import VarlenAttention
from trainer.attention_proof import segment_borders
from trainer.batches import Batch, Exchange
from trainer.communication import Mesh
from trainer.model import Layer, rotary
from trainer.model_config import ModelConfig
from trainer.shape import LayerShape
from trainer.timing import Clock
from trainer.weights import Weight


def layer_flops(shape: LayerShape, pieces: Sequence[int]) -> int:
    """FLOPs of a layer's forward and backward pass: products and causal attention.

    Args:
        shape: of the whole layer.
        pieces: tokens of each.
    """
    pairs = sum(tokens * (tokens + 1) // 2 for tokens in pieces)
    return _alone(shape).flops(sum(pieces), pairs)


def layer_ms(
    shape: LayerShape,
    pieces: Sequence[int],
    *,
    attend: VarlenAttention,
    clock: Clock,
    dtype: torch.dtype,
) -> float:
    """Milliseconds of a layer's forward and backward pass over one micro-batch.

    Gradients of weights and input are made; nothing is sent and no weight changes.

    Args:
        shape: of the whole layer.
        pieces: tokens of each piece of the micro-batch.
        attend: attention in `dtype` on the clock's device.
        clock: measures.
        dtype: of weights and activations.

    Raises:
        torch.OutOfMemoryError: the device has not enough memory.
    """
    config, device = _alone(shape), clock.device
    layer = Layer(config, cast(Mesh, _OneRank()), attend, recompute=False)
    for module in layer.modules():
        if isinstance(module, Weight):
            values = torch.randn(module.weight.shape, device=device, dtype=dtype) * 0.02
            module.weight = nn.Parameter(values)
    batch = _batch(pieces, device)
    rotation = rotary(batch.position_ids, config, dtype)
    x, pull = (
        torch.randn(batch.num_tokens, shape.hidden, device=device, dtype=dtype) for _ in range(2)
    )
    inputs = [x.requires_grad_(), *layer.parameters()]
    return clock.median_ms(lambda: torch.autograd.grad(layer(x, batch, rotation), inputs, pull))


class _OneRank:
    """The collectives of `trainer.communication.Mesh` where there is one rank: none."""

    def gather_tokens(self, shared: Tensor) -> Tensor:
        return shared

    def scatter_sum(self, partial: Tensor) -> Tensor:
        return partial

    def needed_keys(self, kv: Tensor, exchange: Exchange) -> Tensor:
        return kv


def _alone(shape: LayerShape) -> ModelConfig:
    """A model of one layer, and neither embedding nor head."""
    return ModelConfig(layer=shape, num_layers=1, vocab_size=0)


def _batch(pieces: Sequence[int], device: torch.device) -> Batch:
    """A micro-batch without ids: the layer sees its borders and positions."""
    borders, _, longest, _ = segment_borders([(tokens, tokens) for tokens in pieces], device)
    none = torch.empty(0, dtype=torch.int64, device=device)
    positions = torch.cat([torch.arange(tokens, device=device) for tokens in pieces])
    return Batch(
        slot=0,
        num_tokens=len(positions),
        tokens=none,
        labels=none,
        position_ids=positions,
        cu_seqlens_q=borders,
        cu_seqlens_k=borders,
        max_seqlen_q=longest,
        max_seqlen_k=longest,
        exchange=Exchange(send_index=none, send_counts=[], receive_counts=[], buffer_index=none),
        pairs=0,
        predicted=0.0,
    )
