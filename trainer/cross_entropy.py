"""Cross-entropy over a vocabulary that tp ranks share, a chunk of rows at a time.

Logits of a long micro-batch do not fit: 128K tokens times a vocabulary of 128K are 64 GiB in
float32. So a chunk's loss and gradients are computed in one go and its logits are gone before the
next.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from trainer.communication import Mesh


def cross_entropy_sum(
    hidden: Tensor, weight: Tensor, labels: Tensor, *, mesh: Mesh, chunk: int
) -> Tensor:
    """The sum of the losses of all rows that have a label.

    Args:
        hidden: (rows, hidden), the same on every tp rank; its gradient is a summand on each.
        weight: (vocabulary / tp, hidden), this tp rank's share.
        labels: int64, (rows,), negative where there is none.
        mesh: its tp axis shares the vocabulary.
        chunk: rows whose logits are held at once.

    Returns:
        A number in float32, or float64 where `hidden` is, the same on every tp rank.
    """
    loss = _CrossEntropy.apply(hidden, weight, labels, mesh, chunk)
    assert isinstance(loss, Tensor)
    return loss


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, hidden: Tensor, weight: Tensor, labels: Tensor, mesh: Mesh, chunk: int):
        wide = torch.promote_types(hidden.dtype, torch.float32)
        loss = torch.zeros((), dtype=wide, device=hidden.device)
        grad_hidden = torch.empty_like(hidden)
        grad_weight = torch.zeros_like(weight, dtype=wide)
        for start in range(0, len(hidden), chunk):
            part = slice(start, start + chunk)
            logits = (hidden[part] @ weight.T).to(wide)  # (chunk, vocabulary / tp)
            losses, slope = _losses(logits, labels[part], mesh)
            loss += losses.sum()
            slope = slope.to(hidden.dtype)
            grad_hidden[part] = slope @ weight
            grad_weight += slope.T @ hidden[part]
        ctx.save_for_backward(grad_hidden, grad_weight.to(weight.dtype))
        return loss

    @staticmethod
    def backward(ctx, gradient: Tensor):  # pyright: ignore[reportIncompatibleMethodOverride]
        grad_hidden, grad_weight = ctx.saved_tensors
        # `gradient` has no dimensions, so these keep their own types
        return grad_hidden * gradient, grad_weight * gradient, None, None, None


def _losses(logits: Tensor, labels: Tensor, mesh: Mesh) -> tuple[Tensor, Tensor]:
    """Each row's loss, 0 without a label, and its slope in this rank's logits, in their place."""
    shared = mesh.size("tp") > 1
    place = (labels - mesh.rank("tp") * logits.shape[1])[:, None]
    mine = (place >= 0) & (place < logits.shape[1]) & (labels >= 0)[:, None]
    place = place.where(mine, 0)
    highest = logits.amax(1, keepdim=True)
    if shared:
        dist.all_reduce(highest, dist.ReduceOp.MAX, group=mesh.group("tp"))
    logits -= highest
    wanted = logits.gather(1, place) * mine
    exponentials = logits.exp_()
    sums = torch.cat([exponentials.sum(1, keepdim=True), wanted], dim=1)
    if shared:
        dist.all_reduce(sums, group=mesh.group("tp"))
    total, wanted = sums.split(1, dim=1)
    counts = (labels >= 0)[:, None]
    slope = exponentials.mul_(counts / total)
    slope.scatter_add_(1, place, -mine.to(slope.dtype))
    return (total.log() - wanted) * counts, slope
