"""Varlen attention behind one signature: causal inside each segment, and nothing across them.

Segment i has the queries `q[cu_seqlens_q[i] : cu_seqlens_q[i + 1]]` and the keys and values
`cu_seqlens_k[i] : cu_seqlens_k[i + 1]`. The mask is aligned at the bottom right: the last query
sees every key of its segment, the one before it all but the last. So a chunk [start, stop) of a
piece is a segment of stop - start queries and stop keys, as `RankMicroBatch` gives them to a rank.

Three backends compute it: torch's own FlashAttention (CUDA), the package flash-attn (CUDA, where it
is installed), and a loop over segments that is exact in any type on any device. A kernel is proven
before it is used (`trainer.attention_proof`): where it does not keep to this page on a few small
segments, it is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

from trainer.attention_kernels import (
    VarlenAttention,
    load_flash_attn,
    load_reference,
    load_torch,
)
from trainer.attention_proof import prove
from trainer.errors import TrainerError

Load = Callable[[torch.device, torch.dtype], VarlenAttention]
"""Gives a backend's kernel, or says in a TrainerError why it cannot serve there."""
BACKENDS: dict[str, Load] = {
    "torch": load_torch,
    "flash_attn": load_flash_attn,
    "reference": load_reference,
}


def attention_backend(
    name: str, *, device: torch.device | str, dtype: torch.dtype, head_dim: int = 64
) -> VarlenAttention:
    """The backend of that name, proven on that device.

    Args:
        name: one of `BACKENDS`, or "auto": torch's FlashAttention on CUDA, elsewhere the reference.
        device: where tensors will be.
        dtype: which they will have.
        head_dim: on which the proof is run; kernels differ by it.

    Raises:
        TrainerError: unknown, not installed, or it cannot do what is asked there.
    """
    device = torch.device(device)
    name = backend_name(name, device)
    if name not in BACKENDS:
        raise TrainerError(
            f'no attention backend "{name}"; known are auto, {", ".join(sorted(BACKENDS))}'
        )
    return _proven(name, BACKENDS[name], device, dtype, head_dim)


def backend_name(name: str, device: torch.device) -> str:
    """What "auto" stands for there; any other name as it is."""
    if name != "auto":
        return name
    return "torch" if device.type == "cuda" else "reference"


@cache
def _proven(
    name: str, load: Load, device: torch.device, dtype: torch.dtype, head_dim: int
) -> VarlenAttention:
    kernel = _guarded(name, load(device, dtype), device, dtype)
    if load is not load_reference:
        prove(name, kernel, device, dtype, head_dim)
    return kernel


def _guarded(
    name: str, kernel: VarlenAttention, device: torch.device, dtype: torch.dtype
) -> VarlenAttention:
    """The kernel behind the checks that cost no wait for the device."""

    def attend(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        cu_seqlens_q: Tensor,
        cu_seqlens_k: Tensor,
        max_seqlen_q: int,
        max_seqlen_k: int,
    ) -> Tensor:
        for tensor in (q, k, v):
            if tensor.device.type != device.type or tensor.dtype != dtype:
                raise TrainerError(
                    f"attention backend {name} was asked for {dtype} on {device} and is given "
                    f"{tensor.dtype} on {tensor.device}; ask for a backend for those"
                )
        _check_shapes(q, k, v, cu_seqlens_q, cu_seqlens_k)
        if not len(q):
            return q + 0 * (k.sum() + v.sum())
        return kernel(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k)

    return attend


def _check_shapes(
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor
) -> None:
    fits = (
        q.ndim == k.ndim == 3
        and k.shape == v.shape
        and q.shape[2] == k.shape[2]
        and q.shape[1] % max(k.shape[1], 1) == 0
    )
    if not fits:
        raise TrainerError(
            f"q {list(q.shape)}, k {list(k.shape)}, v {list(v.shape)}; they must be (queries, "
            "heads, head_dim) and twice (keys, kv_heads, head_dim), kv_heads dividing heads"
        )
    for borders in (cu_seqlens_q, cu_seqlens_k):
        is_table = borders.dtype == torch.int32 and borders.ndim == 1 and len(borders) > 0
        if not is_table or borders.device.type != q.device.type:
            raise TrainerError(
                f"cu_seqlens are {borders.dtype}{list(borders.shape)} on {borders.device}; they "
                f"must be torch.int32[segments + 1] on {q.device}"
            )
    if len(cu_seqlens_q) != len(cu_seqlens_k):
        raise TrainerError(
            f"{len(cu_seqlens_q) - 1} segments of queries and {len(cu_seqlens_k) - 1} of keys; "
            "each segment needs both"
        )
    if len(q) and len(cu_seqlens_q) == 1:
        raise TrainerError(f"{len(q)} queries in no segment; cu_seqlens must end with their number")
