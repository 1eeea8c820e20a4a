"""Is a kernel what `trainer.attention` says it is? A few small segments tell.

The alignment of the causal mask where queries and keys differ in number is a convention that
changed between versions of kernels, and torch's documentation does not state it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from trainer.attention_kernels import VarlenAttention, reference
from trainer.errors import TrainerError

MAX_ERROR = {
    torch.bfloat16: 0.03,
    torch.float16: 0.005,
    torch.float32: 1e-4,
    torch.float64: 1e-11,
}
"""Error that rounding explains, over the largest value. A wrong mask gives some 1."""
PROOF_SEGMENTS = ((1, 1), (1, 130), (3, 3), (70, 200), (128, 128), (131, 131), (129, 300))
"""Queries and keys of each segment."""


def prove(
    name: str, kernel: VarlenAttention, device: torch.device, dtype: torch.dtype, head_dim: int
) -> None:
    """Compare a kernel with the reference on segments that tell masks and boundaries apart.

    More keys than queries, fewer, more and exactly a tile of either, one token, grouped heads;
    forward and backward. The reference runs on the CPU in float64 from the same values.

    Raises:
        TrainerError: they differ by more than rounding explains, or the kernel does not run.
    """
    try:
        errors = kernel_errors(kernel, PROOF_SEGMENTS, device, dtype, head_dim)
    except (RuntimeError, NotImplementedError) as error:
        raise TrainerError(
            f"attention backend {name} does not run on {device} in {dtype} with head_dim "
            f"{head_dim}: {str(error).splitlines()[0]}"
        ) from error
    for what, error in errors.items():
        if not error <= MAX_ERROR[dtype]:
            raise TrainerError(
                f"attention backend {name} on {device} in {dtype}: {what} is off by {error:.3g} of "
                f"its largest value, more than the {MAX_ERROR[dtype]} of rounding; it does not "
                "keep to causal segments aligned at the bottom right: take another backend"
            )


def kernel_errors(
    kernel: VarlenAttention,
    segments: Sequence[tuple[int, int]],
    device: torch.device,
    dtype: torch.dtype,
    head_dim: int,
    *,
    heads: int = 4,
    kv_heads: int = 2,
) -> dict[str, float]:
    """Largest error of a kernel's output and gradients, relative to their largest value.

    Args:
        kernel: to be looked at.
        segments: queries and keys of each.
        device: where it runs; the reference runs on the CPU in float64.
        dtype: of its inputs, which the reference gets with the same values.
        head_dim: of a head.
        heads: of queries.
        kv_heads: of keys and values.
    """
    seed = torch.Generator().manual_seed(0)
    num_q, num_k = (sum(segment[side] for segment in segments) for side in (0, 1))
    values = [
        torch.randn(count, width, head_dim, generator=seed).to(dtype)
        for count, width in ((num_q, heads), (num_k, kv_heads), (num_k, kv_heads), (num_q, heads))
    ]
    results: list[list[Tensor]] = []
    for attend, place, kind in (
        (kernel, device, dtype),
        (reference, torch.device("cpu"), torch.float64),
    ):
        q, k, v = (value.to(place, kind).requires_grad_() for value in values[:3])
        output = attend(q, k, v, *segment_borders(segments, place))
        gradients = torch.autograd.grad(output, (q, k, v), values[3].to(place, kind))
        results.append([tensor.detach().cpu().double() for tensor in (output, *gradients)])
    names = ("output", "gradient of q", "gradient of k", "gradient of v")
    return {
        name: float((got - right).abs().max() / right.abs().max())
        for name, got, right in zip(names, *results, strict=True)
    }


def segment_borders(
    segments: Sequence[tuple[int, int]], device: torch.device
) -> tuple[Tensor, Tensor, int, int]:
    """The last four arguments of `VarlenAttention` for segments of (queries, keys)."""
    table = torch.tensor(segments, dtype=torch.int64).reshape(-1, 2)
    borders = functional.pad(table.cumsum(0), (0, 0, 1, 0)).to(torch.int32)  # (segments + 1, 2)
    cu_q, cu_k = (borders[:, side].contiguous().to(device) for side in (0, 1))
    longest_q, longest_k = (max((pair[side] for pair in segments), default=0) for side in (0, 1))
    return cu_q, cu_k, longest_q, longest_k
