"""A Llama-like model as one rank computes it: a stage's layers, a tensor-parallel share of each.

Tokens of a micro-batch lie in one dimension. Between the blocks a tp rank holds rows / tp of them
(sequence parallelism); inside a block it holds all rows and a share of the heads or of the width.
Parameters bear the names of the whole model, layers their global numbers, and are the same on every
mesh.

Shapes: rows, tokens of this cp rank with pads; hidden; heads and kv_heads, of this tp rank; dim, of
a head.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.distributed.tensor import Shard
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from trainer.attention_kernels import VarlenAttention
from trainer.batches import Batch
from trainer.communication import Mesh
from trainer.cross_entropy import cross_entropy_sum
from trainer.model_config import ModelConfig
from trainer.weights import Columns, Rows, Scale, Weight


class Attention(nn.Module):
    """Causal attention inside each piece, rotary positions, grouped key-value heads."""

    def __init__(self, config: ModelConfig, mesh: Mesh, attend: VarlenAttention) -> None:
        super().__init__()
        shape = config.layer
        self.mesh, self.attend, self.dim = mesh, attend, shape.head_dim
        self.q_proj = Columns(shape.heads * shape.head_dim, shape.hidden)
        self.k_proj = Columns(shape.kv_heads * shape.head_dim, shape.hidden)
        self.v_proj = Columns(shape.kv_heads * shape.head_dim, shape.hidden)
        self.o_proj = Rows(shape.hidden, shape.heads * shape.head_dim)

    def forward(self, x: Tensor, batch: Batch, rotation: tuple[Tensor, Tensor]) -> Tensor:
        x = self.mesh.gather_tokens(x)  # (rows, hidden)
        rows, n = len(x), batch.num_tokens
        q, k, v = (
            project(x).view(rows, -1, self.dim)
            for project in (self.q_proj, self.k_proj, self.v_proj)
        )
        q, k = rotate(q, rotation), rotate(k, rotation)
        kv = torch.stack([k, v], dim=1)[:n]  # (tokens, 2, kv_heads, dim)
        k, v = self.mesh.needed_keys(kv, batch.exchange).unbind(1)
        seen = self.attend(
            q[:n],
            k,
            v,
            batch.cu_seqlens_q,
            batch.cu_seqlens_k,
            batch.max_seqlen_q,
            batch.max_seqlen_k,
        )
        seen = functional.pad(seen.flatten(1), (0, 0, 0, rows - n))
        return self.mesh.scatter_sum(self.o_proj(seen))


class FeedForward(nn.Module):
    """SwiGLU."""

    def __init__(self, config: ModelConfig, mesh: Mesh) -> None:
        super().__init__()
        shape, self.mesh = config.layer, mesh
        self.gate_proj = Columns(shape.intermediate, shape.hidden)
        self.up_proj = Columns(shape.intermediate, shape.hidden)
        self.down_proj = Rows(shape.hidden, shape.intermediate)

    def forward(self, x: Tensor) -> Tensor:
        x = self.mesh.gather_tokens(x)
        inner = functional.silu(self.gate_proj(x)) * self.up_proj(x)
        return self.mesh.scatter_sum(self.down_proj(inner))


class Layer(nn.Module):
    """Attention and feed-forward, each behind a norm and beside a residual."""

    def __init__(
        self, config: ModelConfig, mesh: Mesh, attend: VarlenAttention, *, recompute: bool
    ) -> None:
        super().__init__()
        self.input_layernorm = Scale(config.layer.hidden, config.rms_norm_eps)
        self.self_attn = Attention(config, mesh, attend)
        self.post_attention_layernorm = Scale(config.layer.hidden, config.rms_norm_eps)
        self.mlp = FeedForward(config, mesh)
        self.recompute = recompute

    def forward(self, x: Tensor, batch: Batch, rotation: tuple[Tensor, Tensor]) -> Tensor:
        if self.recompute:
            return checkpoint(self.run, x, batch, rotation, use_reentrant=False)
        return self.run(x, batch, rotation)

    def run(self, x: Tensor, batch: Batch, rotation: tuple[Tensor, Tensor]) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), batch, rotation)
        return x + self.mlp(self.post_attention_layernorm(x))


class Embedding(Weight):
    """Tokens to vectors; a tp rank knows a share of the vocabulary."""

    placement = Shard(0)

    def forward(self, tokens: Tensor, mesh: Mesh) -> Tensor:
        weight = self.local()
        place = tokens - mesh.rank("tp") * len(weight)
        mine = (place >= 0) & (place < len(weight))
        vectors = functional.embedding(place.where(mine, 0), weight)
        return mesh.scatter_sum(vectors * mine[:, None])


class Stage(nn.Module):
    """The layers of one pipeline rank; the first stage embeds, the last one gives the loss."""

    def __init__(
        self,
        config: ModelConfig,
        mesh: Mesh,
        attend: VarlenAttention,
        *,
        recompute: bool = False,
        loss_rows: int = 2048,
    ) -> None:
        super().__init__()
        self.config, self.mesh, self.loss_rows = config, mesh, loss_rows
        hidden, count = config.layer.hidden, config.num_layers
        first, stop = (count * (mesh.rank("pp") + i) // mesh.size("pp") for i in (0, 1))
        if mesh.is_first_stage:
            self.embed_tokens = Embedding(config.vocab_size, hidden)
        self.layers = nn.ModuleDict(
            {
                str(number): Layer(config, mesh, attend, recompute=recompute)
                for number in range(first, stop)
            }
        )
        if mesh.is_last_stage:
            self.norm = Scale(hidden, config.rms_norm_eps)
            self.lm_head = Columns(config.vocab_size, hidden)

    def forward(self, x: Tensor | None, batch: Batch) -> Tensor:
        """Activations (rows / tp, hidden) of the stage before to this one's, or the loss.

        The loss is the sum over this cp rank's tokens, the same on its tp ranks, in float32 or
        float64.
        """
        if x is None:
            x = self.embed_tokens(batch.tokens, self.mesh)
        assert isinstance(x, Tensor)
        rotation = rotary(batch.position_ids, self.config, x.dtype)
        for layer in self.layers.values():
            x = layer(x, batch, rotation)
            assert isinstance(x, Tensor)
        if not self.mesh.is_last_stage:
            return x
        hidden = self.mesh.gather_tokens(self.norm(x))
        return cross_entropy_sum(
            hidden, self.lm_head.local(), batch.labels, mesh=self.mesh, chunk=self.loss_rows
        )


def rotary(position_ids: Tensor, config: ModelConfig, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Cosines and sines of each position, (rows, 1, dim / 2), in float32 or `dtype` if finer."""
    half = config.layer.head_dim // 2
    exponent = torch.arange(half, device=position_ids.device, dtype=torch.float64) / half
    angle = position_ids[:, None] * config.rope_theta**-exponent
    wide = torch.promote_types(dtype, torch.float32)
    return angle.cos().to(wide)[:, None], angle.sin().to(wide)[:, None]


def rotate(x: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    """Turn each pair (x[i], x[i + dim / 2]) of a head by its position's angle."""
    cos, sin = rotation
    left, right = x.chunk(2, dim=-1)
    return torch.cat([left * cos - right * sin, right * cos + left * sin], dim=-1).to(x.dtype)
