"""The mesh of ranks, and the three collectives of the model, each with its gradient.

Axes are pp, dp, cp, tp, the last one the fastest, so that tensor-parallel ranks are neighbours.
Gathering and scattering go over tp and are each other's gradient; keys and values go over cp, along
the plan's lists, and their gradients come back along the same lists.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from trainer.batches import Exchange
from trainer.stopwatch import Stopwatch

AXES = ("pp", "dp", "cp", "tp")


@dataclass(frozen=True, slots=True, kw_only=True)
class Mesh:
    """This rank's place among the ranks; all collectives of the model are its methods."""

    device: torch.device
    axes: DeviceMesh
    """pp, dp, cp and tp."""
    dp_cp: DeviceMesh
    """dp and cp as one axis: ranks that share a stage's parameters and differ in tokens."""
    stopwatch: Stopwatch

    def size(self, axis: str) -> int:
        return self.axes[axis].size()

    def rank(self, axis: str) -> int:
        return self.axes.get_local_rank(axis)

    def group(self, axis: str) -> dist.ProcessGroup:
        return self.axes.get_group(axis)

    @property
    def is_first_stage(self) -> bool:
        return self.rank("pp") == 0

    @property
    def is_last_stage(self) -> bool:
        return self.rank("pp") == self.size("pp") - 1

    def gather_tokens(self, shared: Tensor) -> Tensor:
        """(rows / tp, ...) of each tp rank to (rows, ...) on all of them."""
        return shared if self.size("tp") == 1 else _Gather.apply(shared, self.group("tp"))

    def scatter_sum(self, partial: Tensor) -> Tensor:
        """(rows, ...), a summand on each tp rank, to (rows / tp, ...) of the sum."""
        return partial if self.size("tp") == 1 else _ScatterSum.apply(partial, self.group("tp"))

    def needed_keys(self, kv: Tensor, exchange: Exchange) -> Tensor:
        """The local tokens' keys to those that the local chunks read, chunk by chunk.

        Every cp rank calls it for every micro-batch, tokens or not.

        Args:
            kv: (tokens, ...), in the order of the rank's tokens.
            exchange: of the micro-batch.

        Returns:
            (keys, ...), as `RankExchange.buffer_index` has them.
        """
        if self.size("cp") == 1:
            return kv  # every piece is here, whole
        received = _Swap.apply(
            kv.index_select(0, exchange.send_index),
            exchange.send_counts,
            exchange.receive_counts,
            self.group("cp"),
            self.stopwatch,
        )
        return torch.cat([kv, received]).index_select(0, exchange.buffer_index)

    def sum_over_world(self, *values: float | Tensor) -> list[float]:
        """Each value summed over all ranks, in float64."""
        total = torch.stack(
            [torch.as_tensor(v, dtype=torch.float64, device=self.device) for v in values]
        )
        dist.all_reduce(total)
        return total.tolist()


def open_mesh(*, dp: int, cp: int, pp: int, tp: int, device: torch.device) -> Mesh:
    """The mesh over all ranks of the initialised process group; a collective call."""
    axes = init_device_mesh(device.type, (pp, dp, cp, tp), mesh_dim_names=AXES)
    dp_cp = axes["dp", "cp"]._flatten("dp_cp")
    return Mesh(device=device, axes=axes, dp_cp=dp_cp, stopwatch=Stopwatch(device))


def _gather(shared: Tensor, group: dist.ProcessGroup) -> Tensor:
    rows = shared.new_empty(len(shared) * group.size(), *shared.shape[1:])
    dist.all_gather_single(rows, shared.contiguous(), group=group)
    return rows


def _scatter_sum(partial: Tensor, group: dist.ProcessGroup) -> Tensor:
    share = partial.new_empty(len(partial) // group.size(), *partial.shape[1:])
    dist.reduce_scatter_single(share, partial.contiguous(), group=group)
    return share


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, shared: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        return _gather(shared, group)

    @staticmethod
    def backward(ctx, gradient: Tensor):  # pyright: ignore[reportIncompatibleMethodOverride]
        return _scatter_sum(gradient, ctx.group), None


class _ScatterSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx, partial: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        return _scatter_sum(partial, group)

    @staticmethod
    def backward(ctx, gradient: Tensor):  # pyright: ignore[reportIncompatibleMethodOverride]
        return _gather(gradient, ctx.group), None


class _Swap(torch.autograd.Function):
    """All-to-all of rows; counts are a rank's own, of what goes to and comes from each peer."""

    @staticmethod
    def forward(ctx, rows: Tensor, send: list[int], receive: list[int], group, stopwatch):
        ctx.saved = send, receive, group, stopwatch
        return _swap(rows, send, receive, group, stopwatch)

    @staticmethod
    def backward(ctx, gradient: Tensor):  # pyright: ignore[reportIncompatibleMethodOverride]
        send, receive, group, stopwatch = ctx.saved
        return _swap(gradient, receive, send, group, stopwatch), None, None, None, None


def _swap(
    rows: Tensor,
    send: list[int],
    receive: list[int],
    group: dist.ProcessGroup,
    stopwatch: Stopwatch,
) -> Tensor:
    received = rows.new_empty(sum(receive), *rows.shape[1:])
    with stopwatch.measure("exchange"):
        dist.all_to_all_single(received, rows.contiguous(), receive, send, group=group)
    return received
