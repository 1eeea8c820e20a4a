"""Causal attention and its gradients by hand, twice: query by query, and as varlen kernels do it.

Queries are (tokens, heads, dim); keys and values lie together as (tokens, 2, kv_heads, dim), each
pair shared by heads / kv_heads queries. All float64.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

HEADS, KV_HEADS, DIM = 4, 2, 3
SCALE = DIM**-0.5


@dataclass
class Result:
    out: np.ndarray
    grad_q: np.ndarray
    grad_kv: np.ndarray
    pairs: int
    """Query-key pairs that were computed."""


def inputs(tokens: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Queries, keys with values, and the gradient of the output; the same ones every time."""
    rng = np.random.default_rng(tokens)
    q = rng.normal(size=(tokens, HEADS, DIM))
    kv = rng.normal(size=(tokens, 2, KV_HEADS, DIM))
    return q, kv, rng.normal(size=(tokens, HEADS, DIM))


def whole_attention(
    q: np.ndarray, kv: np.ndarray, grad: np.ndarray, lengths: Sequence[int]
) -> Result:
    """Each query of each piece by itself, over the keys of its piece up to it; no mask at all."""
    out, grad_q, grad_kv = np.zeros_like(q), np.zeros_like(q), np.zeros_like(kv)
    first = pairs = 0
    for length in lengths:
        for i in range(first, first + length):
            keys = slice(first, i + 1)
            # (keys, heads, dim), each key and value seen by its group of heads
            k, v = np.repeat(kv[keys], HEADS // KV_HEADS, axis=2).swapaxes(0, 1)
            weight = np.exp(np.sum(k * q[i], axis=2) * SCALE)
            weight /= weight.sum(axis=0)  # (keys, heads)
            out[i] = np.sum(weight[:, :, None] * v, axis=0)
            grad_weight = np.sum(v * grad[i], axis=2)
            grad_score = weight * (grad_weight - np.sum(weight * grad_weight, axis=0)) * SCALE
            grad_q[i] = np.sum(grad_score[:, :, None] * k, axis=0)
            both = np.stack([grad_score[:, :, None] * q[i], weight[:, :, None] * grad[i]], axis=1)
            grad_kv[keys] += both.reshape(-1, 2, KV_HEADS, HEADS // KV_HEADS, DIM).sum(axis=3)
            pairs += i + 1 - first
        first += length
    return Result(out, grad_q, grad_kv, pairs)


def varlen_attention(
    q: np.ndarray,
    kv: np.ndarray,
    grad: np.ndarray,
    cu_seqlens_q: np.ndarray,
    cu_seqlens_k: np.ndarray,
) -> Result:
    """Chunk by chunk, the causal mask aligned at the end of queries and keys."""
    out, grad_q, grad_kv = np.zeros_like(q), np.zeros_like(q), np.zeros_like(kv)
    groups = q.reshape(len(q), KV_HEADS, HEADS // KV_HEADS, DIM)
    grads = grad.reshape(groups.shape)
    pairs = 0
    for chunk in range(len(cu_seqlens_q) - 1):
        mine = slice(*cu_seqlens_q[chunk : chunk + 2].tolist())
        keys = slice(*cu_seqlens_k[chunk : chunk + 2].tolist())
        k, v = kv[keys].swapaxes(0, 1)
        rows, columns = mine.stop - mine.start, keys.stop - keys.start
        visible = np.tri(rows, columns, columns - rows, dtype=np.bool_)
        score = np.einsum("qgrd,kgd->grqk", groups[mine], k, optimize=True) * SCALE
        score = np.where(visible, score, -np.inf)
        weight = np.exp(score - score.max(axis=-1, keepdims=True))
        weight /= weight.sum(axis=-1, keepdims=True)
        part = np.einsum("grqk,kgd->qgrd", weight, v, optimize=True)
        grad_weight = np.einsum("qgrd,kgd->grqk", grads[mine], v, optimize=True)
        mean = np.sum(part * grads[mine], axis=-1).transpose(1, 2, 0)[..., None]
        grad_score = weight * (grad_weight - mean) * SCALE
        out[mine] = part.reshape(rows, HEADS, DIM)
        grad_q[mine] = np.einsum("grqk,kgd->qgrd", grad_score, k, optimize=True).reshape(
            rows, HEADS, DIM
        )
        grad_kv[keys, 0] += np.einsum("grqk,qgrd->kgd", grad_score, groups[mine], optimize=True)
        grad_kv[keys, 1] += np.einsum("grqk,qgrd->kgd", weight, grads[mine], optimize=True)
        pairs += int(visible.sum())
    return Result(out, grad_q, grad_kv, pairs)
