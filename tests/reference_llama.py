"""A Llama written out for one piece at a time, plain tensors in one process; believed at a glance.

Parameters bear the names of `config.json` models' weights, without "model.".
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor


@dataclass
class Sizes:
    hidden: int
    heads: int
    kv_heads: int
    intermediate: int
    layers: int
    vocabulary: int
    theta: float = 10_000.0
    eps: float = 1e-5

    @property
    def dim(self) -> int:
        return self.hidden // self.heads

    def parameters(self) -> dict[str, tuple[int, ...]]:
        """Names and shapes."""
        kv = self.kv_heads * self.dim
        shapes: dict[str, tuple[int, ...]] = {
            "embed_tokens.weight": (self.vocabulary, self.hidden),
            "norm.weight": (self.hidden,),
            "lm_head.weight": (self.vocabulary, self.hidden),
        }
        for i in range(self.layers):
            shapes |= {
                f"layers.{i}.input_layernorm.weight": (self.hidden,),
                f"layers.{i}.self_attn.q_proj.weight": (self.hidden, self.hidden),
                f"layers.{i}.self_attn.k_proj.weight": (kv, self.hidden),
                f"layers.{i}.self_attn.v_proj.weight": (kv, self.hidden),
                f"layers.{i}.self_attn.o_proj.weight": (self.hidden, self.hidden),
                f"layers.{i}.post_attention_layernorm.weight": (self.hidden,),
                f"layers.{i}.mlp.gate_proj.weight": (self.intermediate, self.hidden),
                f"layers.{i}.mlp.up_proj.weight": (self.intermediate, self.hidden),
                f"layers.{i}.mlp.down_proj.weight": (self.hidden, self.intermediate),
            }
        return shapes


def piece_loss(
    weights: dict[str, Tensor], sizes: Sizes, tokens: np.ndarray, labels: np.ndarray
) -> Tensor:
    """Sum of the losses of one piece's tokens that have a label."""
    x = weights["embed_tokens.weight"][torch.tensor(tokens.astype(np.int64))]  # (tokens, hidden)
    for i in range(sizes.layers):
        own = {
            name.removeprefix(f"layers.{i}.").removesuffix(".weight"): weight
            for name, weight in weights.items()
            if name.startswith(f"layers.{i}.")
        }
        x = x + _attention(_norm(x, own["input_layernorm"], sizes), own, sizes)
        h = _norm(x, own["post_attention_layernorm"], sizes)
        gate, up = h @ own["mlp.gate_proj"].T, h @ own["mlp.up_proj"].T
        x = x + (gate * torch.sigmoid(gate) * up) @ own["mlp.down_proj"].T
    logits = _norm(x, weights["norm.weight"], sizes) @ weights["lm_head.weight"].T
    loss = torch.zeros((), dtype=x.dtype)
    for row, label in zip(logits, labels.tolist(), strict=True):
        if label >= 0:
            loss = loss + torch.logsumexp(row, 0) - row[label]
    return loss


def _norm(x: Tensor, weight: Tensor, sizes: Sizes) -> Tensor:
    return x / torch.sqrt((x * x).mean(1, keepdim=True) + sizes.eps) * weight


def _attention(x: Tensor, own: dict[str, Tensor], sizes: Sizes) -> Tensor:
    count, dim = len(x), sizes.dim
    hidden_bound = torch.ones(count, count, dtype=torch.bool).triu(1)
    q, k, v = (x @ own[f"self_attn.{name}_proj"].T for name in "qkv")
    heads = []
    for head in range(sizes.heads):
        group = head // (sizes.heads // sizes.kv_heads)
        mine, shared = slice(head * dim, (head + 1) * dim), slice(group * dim, (group + 1) * dim)
        scores = _turn(q[:, mine], sizes) @ _turn(k[:, shared], sizes).T / dim**0.5
        scores = scores.masked_fill(hidden_bound, -torch.inf)
        heads.append(torch.softmax(scores, 1) @ v[:, shared])
    return torch.cat(heads, 1) @ own["self_attn.o_proj"].T


def _turn(x: Tensor, sizes: Sizes) -> Tensor:
    """Pair (i, i + dim / 2) as a complex number, turned by position * theta ** (-2 i / dim)."""
    half = sizes.dim // 2
    pairs = torch.complex(x[:, :half], x[:, half:])
    position = torch.arange(len(x), dtype=torch.float64)[:, None]
    angle = position * sizes.theta ** (-torch.arange(half, dtype=torch.float64) / half)
    turned = pairs * torch.polar(torch.ones_like(angle), angle)
    return torch.cat([turned.real, turned.imag], 1)
