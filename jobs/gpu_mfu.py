"""`make gpu-check`, the lines "mfu": how much of a device's peak one layer reaches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from packer.lengths import fig3_lengths
from trainer.errors import require_torch

if TYPE_CHECKING:
    import torch

TOKENS = (8192, 32_768, 131_072)
TINY_TOKENS = (256, 1024)
PEAK_TFLOPS = {
    "NVIDIA A100": 312.0,
    "NVIDIA H100 80GB HBM3": 989.0,
    "NVIDIA H200": 989.0,
    "NVIDIA B200": 2250.0,
}
"""Dense bfloat16, by how CUDA's name of the device begins. From NVIDIA's datasheets of A100, H100
SXM, H200 SXM and HGX B200; those since H100 state twice as much, with sparsity."""
_LESS = ("MIG", "NVL")
"""In the names of devices that begin so and have a lower peak."""


def peak_tflops(device: str) -> float | None:
    """The peak of a device by its name, None where it is not known.

    Example:
        >>> peak_tflops("NVIDIA H200"), peak_tflops("NVIDIA H200 NVL")
        (989.0, None)
    """
    if any(part in device for part in _LESS):
        return None
    peaks = (peak for name, peak in PEAK_TFLOPS.items() if device.startswith(name))
    return next(peaks, None)


def mfu_lines(
    config: Mapping[str, Any], device: torch.device, peak: float | None, sizes: Sequence[int]
) -> Iterator[dict[str, Any]]:
    """A line a size and kind of micro-batch: one document, and documents of the paper's lengths.

    Args:
        config: of a `config.json`, whose layer is run.
        device: where.
        peak: dense TFLOPs/s of the device; None where it is not known, then there is no MFU.
        sizes: tokens of the micro-batches.

    Raises:
        TrainerError: no such layer, or attention cannot run there.
    """
    torch = require_torch()
    from trainer.attention import attention_backend
    from trainer.layer_run import layer_flops, layer_ms
    from trainer.shape import layer_shape
    from trainer.timing import Clock

    shape = layer_shape(config)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    attend = attention_backend("auto", device=device, dtype=dtype, head_dim=shape.head_dim)
    for tokens in sizes:
        for kind, pieces in (("one", [tokens]), ("packed", packed(tokens))):
            line = {
                "check": "mfu",
                "documents": kind,
                "pieces": len(pieces),
                "tokens": tokens,
                "dtype": str(dtype).removeprefix("torch."),
            }
            try:
                ms = layer_ms(shape, pieces, attend=attend, clock=Clock(device=device), dtype=dtype)
            except torch.OutOfMemoryError as error:
                yield {**line, "refused": str(error).splitlines()[0]}
                continue
            tflops_per_s = layer_flops(shape, pieces) / ms / 1e9
            yield {
                **line,
                "ms": ms,
                "tflops_per_s": tflops_per_s,
                "peak_tflops": peak,
                "mfu": tflops_per_s / peak if peak else None,
            }


def packed(tokens: int) -> list[int]:
    """The paper's first documents, seed 0, none longer than these tokens, the last one cut to them.

    Example:
        >>> sum(packed(8192))
        8192
    """
    lengths = np.minimum(fig3_lengths(tokens, 0), tokens)
    borders = np.minimum(np.cumsum(lengths), tokens)
    return np.diff(borders[: int(np.searchsorted(borders, tokens)) + 1], prepend=0).tolist()
