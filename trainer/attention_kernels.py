"""The kernels of varlen attention; `trainer.attention` says what they compute and chooses."""

from __future__ import annotations

from itertools import pairwise
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from trainer.errors import TrainerError

HALF = (torch.bfloat16, torch.float16)


class VarlenAttention(Protocol):
    """Attention of many segments.

    Args:
        q: (queries, heads, head_dim).
        k: (keys, kv_heads, head_dim); kv_heads divides heads, and head h of `q` sees key-value head
            h // (heads / kv_heads).
        v: same shape as `k`.
        cu_seqlens_q: int32, (segments + 1,), the first query of each segment, and their number.
        cu_seqlens_k: int32, same shape, the same of keys; a segment with queries has at least as
            many keys.
        max_seqlen_q: queries of the longest segment.
        max_seqlen_k: keys of the longest segment.

    Returns:
        (queries, heads, head_dim), scores scaled by head_dim ** -0.5. Where there are no queries it
        is empty and hangs on `k` and `v` all the same, so that a rank without tokens still enters
        the collectives of its backward pass.

    Raises:
        TrainerError: shapes, types or devices that do not fit each other or the backend.
    """

    def __call__(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        cu_seqlens_q: Tensor,
        cu_seqlens_k: Tensor,
        max_seqlen_q: int,
        max_seqlen_k: int,
    ) -> Tensor: ...


def reference(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
) -> Tensor:
    """As `VarlenAttention`: a segment at a time, with its mask written out.

    Exact in any type, gradients too, on any device; memory is queries x keys of a segment a head,
    and boundaries are read on the host. Made to be trusted, not to be fast.
    """
    outputs: list[Tensor] = []
    borders_q, borders_k = cu_seqlens_q.tolist(), cu_seqlens_k.tolist()
    _check_borders("q", borders_q, len(q), max_seqlen_q)
    _check_borders("k", borders_k, len(k), max_seqlen_k)
    for i in range(len(borders_q) - 1):
        rows, keys = slice(*borders_q[i : i + 2]), slice(*borders_k[i : i + 2])
        num_rows, num_keys = rows.stop - rows.start, keys.stop - keys.start
        if num_rows == 0:
            continue
        if num_keys < num_rows:
            raise TrainerError(
                f"segment {i} has {num_rows} queries and {num_keys} keys; a causal segment needs "
                "at least as many keys"
            )
        seen = torch.ones(num_rows, num_keys, dtype=torch.bool, device=q.device)
        attended = functional.scaled_dot_product_attention(
            q[rows].transpose(0, 1)[None],
            k[keys].transpose(0, 1)[None],
            v[keys].transpose(0, 1)[None],
            attn_mask=seen.tril(num_keys - num_rows),
            enable_gqa=q.shape[1] != k.shape[1],
        )  # (1, heads, rows, head_dim)
        outputs.append(attended[0].transpose(0, 1))
    return torch.cat(outputs)


def load_reference(device: torch.device, dtype: torch.dtype) -> VarlenAttention:
    """The reference, for any device and type."""
    return reference


def load_torch(device: torch.device, dtype: torch.dtype) -> VarlenAttention:
    """FlashAttention as torch has it; no other package.

    Raises:
        TrainerError: the device or type is none of its.
    """
    _require_cuda("torch", device, dtype)
    from torch.nn.attention.varlen import varlen_attn

    def kernel(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        cu_seqlens_q: Tensor,
        cu_seqlens_k: Tensor,
        max_seqlen_q: int,
        max_seqlen_k: int,
    ) -> Tensor:
        output = varlen_attn(
            q,
            k,
            v,
            cu_seqlens_q,
            cu_seqlens_k,
            max_seqlen_q,
            max_seqlen_k,
            window_size=(-1, 0),  # causal
            enable_gqa=q.shape[1] != k.shape[1],
        )
        assert isinstance(output, Tensor)
        return output

    return kernel


def load_flash_attn(device: torch.device, dtype: torch.dtype) -> VarlenAttention:
    """The package flash-attn.

    Raises:
        TrainerError: it is not installed, or the device or type is none of its.
    """
    _require_cuda("flash_attn", device, dtype)
    try:
        from flash_attn import flash_attn_varlen_func  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise TrainerError(
            f"attention backend flash_attn: {error}; install flash-attn (pip install torch first, "
            "then pip install --no-build-isolation 'steelyard[gpu]') or take backend torch"
        ) from None

    def kernel(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        cu_seqlens_q: Tensor,
        cu_seqlens_k: Tensor,
        max_seqlen_q: int,
        max_seqlen_k: int,
    ) -> Tensor:
        return flash_attn_varlen_func(
            q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, causal=True
        )

    return kernel


def _check_borders(side: str, borders: list[int], count: int, longest: int) -> None:
    lengths = [stop - start for start, stop in pairwise(borders)]
    if borders[0] != 0 or borders[-1] != count or min(lengths) < 0:
        raise TrainerError(
            f"cu_seqlens_{side} must rise from 0 to {count}, the number of tokens; they run from "
            f"{borders[0]} to {borders[-1]}, the shortest segment {min(lengths)}"
        )
    if max(lengths) > longest:
        raise TrainerError(
            f"max_seqlen_{side} is {longest}, but a segment has {max(lengths)} tokens"
        )


def _require_cuda(name: str, device: torch.device, dtype: torch.dtype) -> None:
    if device.type != "cuda" or dtype not in HALF:
        raise TrainerError(
            f"attention backend {name} computes bfloat16 and float16 on a CUDA device, not {dtype} "
            f"on {device}; the backend reference takes any"
        )
