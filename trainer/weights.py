"""Weights that tensor-parallel ranks share, and how every rank comes to the same ones.

A weight is a DTensor over the tp axis where that has more than one rank, so that checkpoints know
the whole; computing is done on the local share, since DTensor's own rules are looked up anew for
every shape, and shapes here never repeat.
"""

from __future__ import annotations

import hashlib
import math

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import (
    DTensor,
    Partial,
    Placement,
    Replicate,
    Shard,
    distribute_tensor,
)
from torch.nn import functional


class Weight(nn.Module):
    """One parameter, `weight`; its subclasses say how tp ranks share it."""

    placement: Placement = Replicate()

    def __init__(self, *size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size, device="meta"))

    def local(self) -> Tensor:
        """This rank's share, part of the graph."""
        weight = self.weight
        if not isinstance(weight, DTensor):
            return weight
        whole = isinstance(self.placement, Replicate)
        # Each tp rank's tokens give a summand of a whole weight's gradient.
        return weight.to_local(grad_placements=[Partial() if whole else self.placement])


class Columns(Weight):
    """(out, in), each rank a share of the outputs."""

    placement = Shard(0)

    def forward(self, x: Tensor) -> Tensor:
        return functional.linear(x, self.local())


class Rows(Weight):
    """(out, in), each rank a share of the inputs; what it gives is a summand."""

    placement = Shard(1)

    def forward(self, x: Tensor) -> Tensor:
        return functional.linear(x, self.local())


class Scale(Weight):
    """RMSNorm; computed in float32 at least."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__(size)
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        normed = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return normed.to(x.dtype) * self.local()


def initial_weight(name: str, size: torch.Size, *, seed: int, std: float, layers: int) -> Tensor:
    """A parameter's first values, float32: of its name and the seed alone.

    Args:
        name: in the whole model.
        size: of the whole parameter; one dimension is a norm's, which begins at 1.
        seed: of the run.
        std: standard deviation; projections onto the residual have it over sqrt(2 layers).
        layers: of the model.
    """
    if len(size) == 1:
        return torch.ones(size)
    digest = hashlib.sha256(f"{seed} {name}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)
    if name.endswith(("o_proj.weight", "down_proj.weight")):
        std /= math.sqrt(2 * layers)
    return torch.randn(size, generator=generator) * std


def materialise(
    module: nn.Module,
    prefix: str,
    *,
    seed: int,
    std: float,
    layers: int,
    tp: DeviceMesh,
    device: torch.device,
    dtype: torch.dtype,
) -> None:
    """Give every weight below a module that has none yet its first values, one after the other.

    Args:
        module: part of the whole model.
        prefix: of its parameters' names there.
        seed: as in `initial_weight`, also the next two.
        std: of values.
        layers: of the model.
        tp: the tensor-parallel axis.
        device: where they go.
        dtype: what they are kept as.
    """
    for name, child in module.named_modules():
        if not isinstance(child, Weight) or not child.weight.is_meta:
            continue
        path = ".".join(part for part in (prefix, name, "weight") if part)
        whole = initial_weight(path, child.weight.shape, seed=seed, std=std, layers=layers)
        whole = whole.to(device=device, dtype=dtype)
        if tp.size() > 1:
            whole = distribute_tensor(whole, tp, [child.placement], src_data_rank=None)
        child.weight = nn.Parameter(whole)
