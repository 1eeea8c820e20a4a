"""Between gradients and parameters: the norm over all axes, clipping, the learning rate."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from trainer.settings import OptimizerSettings


def local_gradients(module: nn.Module, tp_size: int) -> list[tuple[Tensor, int]]:
    """This rank's shards of the gradients, and on how many tp ranks each lies."""
    found: list[tuple[Tensor, int]] = []
    for parameter in module.parameters():
        gradient = parameter.grad
        assert isinstance(gradient, DTensor)
        assert isinstance(parameter, DTensor)
        if gradient.placements != parameter.placements:  # a norm's, summands over tp
            gradient = gradient.redistribute(placements=parameter.placements)
            parameter.grad = gradient
        found.append((gradient.to_local(), tp_size if parameter.ndim == 1 else 1))
    return found


def sum_of_squares(gradients: list[tuple[Tensor, int]]) -> Tensor:
    """Of a rank's shards, in float64; summed over all ranks it is the squared norm."""
    norms = [
        torch.linalg.vector_norm(gradient, dtype=torch.float64).square() / copies
        for gradient, copies in gradients
    ]
    return torch.stack(norms).sum()


def clip(gradients: list[tuple[Tensor, int]], norm: float, max_norm: float) -> None:
    """Scale the gradients so that their norm is at most `max_norm`; 0 leaves them."""
    if max_norm and norm > max_norm:
        for gradient, _ in gradients:
            gradient.mul_(max_norm / norm)


def learning_rate(step: int, num_steps: int, settings: OptimizerSettings) -> float:
    """Of a step: a straight line up from 0, then half a cosine down to `min_lr` after the last.

    Example:
        >>> settings = OptimizerSettings(lr=1.0, min_lr=0.5, warmup_steps=2)
        >>> [learning_rate(step, 4, settings) for step in range(4)]
        [0.5, 1.0, 1.0, 0.75]
    """
    if step < settings.warmup_steps:
        return settings.lr * (step + 1) / settings.warmup_steps
    share = (step - settings.warmup_steps) / max(num_steps - settings.warmup_steps, 1)
    return settings.min_lr + (settings.lr - settings.min_lr) * (1 + math.cos(math.pi * share)) / 2
