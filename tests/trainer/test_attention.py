"""Varlen attention: every segment as a dense softmax would have it, and nothing across segments."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch
from torch import Tensor

from trainer import attention, attention_kernels
from trainer.attention import attention_backend
from trainer.attention_kernels import VarlenAttention, reference
from trainer.attention_proof import kernel_errors, prove, segment_borders
from trainer.errors import TrainerError

CPU = torch.device("cpu")
SEGMENTS = [
    [(1, 1)],
    [(4, 4)],
    [(2, 5), (3, 3), (1, 9)],
    [(0, 0), (3, 7), (0, 4), (2, 2), (0, 0)],
    [(130, 300), (1, 1), (64, 64)],
]


def dense(q: Tensor, k: Tensor, v: Tensor, segments: list[tuple[int, int]]) -> Tensor:
    """One matrix of all scores, masked to each segment's corner, softmax written out."""
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    scores = torch.einsum("qhd,khd->hqk", q, k) * q.shape[2] ** -0.5
    allowed = torch.zeros(scores.shape[1:], dtype=torch.bool)
    q0 = k0 = 0
    for num_q, num_k in segments:
        for row in range(num_q):
            allowed[q0 + row, k0 : k0 + num_k - num_q + row + 1] = True
        q0, k0 = q0 + num_q, k0 + num_k
    weights = torch.where(allowed, scores.exp(), 0.0)
    return torch.einsum("hqk,khd->qhd", weights / weights.sum(-1, keepdim=True), v)


def inputs(segments: list[tuple[int, int]], heads: int, kv_heads: int) -> list[Tensor]:
    seed = torch.Generator().manual_seed(1)
    counts = [sum(segment[side] for segment in segments) for side in (0, 1)]
    shapes = [(counts[0], heads, 8), (counts[1], kv_heads, 8), (counts[1], kv_heads, 8)]
    return [
        torch.randn(shape, generator=seed, dtype=torch.float64).requires_grad_() for shape in shapes
    ]


@pytest.mark.parametrize("segments", SEGMENTS, ids=str)
@pytest.mark.parametrize(("heads", "kv_heads"), [(2, 2), (4, 2), (6, 1)])
def test_the_reference_is_dense_softmax_forward_and_backward(
    segments: list[tuple[int, int]], heads: int, kv_heads: int
) -> None:
    tensors = inputs(segments, heads, kv_heads)
    attend = attention_backend("reference", device="cpu", dtype=torch.float64)
    outputs = [
        attend(*tensors, *segment_borders(segments, CPU)),
        dense(*tensors, segments),
    ]
    torch.testing.assert_close(*outputs, rtol=0, atol=1e-13)
    pull = torch.randn(outputs[0].shape, dtype=torch.float64)
    gradients = [torch.autograd.grad(output, tensors, pull) for output in outputs]
    for got, right in zip(*gradients, strict=True):
        torch.testing.assert_close(got, right, rtol=0, atol=1e-13)


def test_a_literal_chunk_sees_the_keys_before_it_and_itself() -> None:
    """Queries 2, 3 of a piece; equal scores, so a row is the mean of the values that it sees."""
    q = torch.zeros(2, 1, 1, dtype=torch.float64)
    k = torch.zeros(4, 1, 1, dtype=torch.float64)
    v = torch.tensor([3.0, 6, 9, 18], dtype=torch.float64).reshape(4, 1, 1)
    attend = attention_backend("reference", device="cpu", dtype=torch.float64)
    assert attend(q, k, v, *segment_borders([(2, 4)], CPU)).flatten().tolist() == [6.0, 9.0]


def test_another_segments_values_change_no_bit() -> None:
    segments = [(3, 5), (4, 4), (2, 6)]
    tensors = [tensor.detach() for tensor in inputs(segments, 4, 2)]
    before = reference(*tensors, *segment_borders(segments, CPU))
    tensors[0][3:7], tensors[1][5:9], tensors[2][5:9] = 100.0, float("inf"), float("nan")
    after = reference(*tensors, *segment_borders(segments, CPU))
    others = [0, 1, 2, 7, 8]
    assert torch.equal(before[others], after[others])
    assert after[3:7].isnan().all()


@pytest.mark.parametrize("segments", [[], [(0, 0)], [(0, 3)]], ids=str)
def test_a_rank_without_queries_stays_in_the_graph(segments: list[tuple[int, int]]) -> None:
    tensors = inputs(segments, 2, 1)
    attend = attention_backend("reference", device="cpu", dtype=torch.float64)
    output = attend(*tensors, *segment_borders(segments, CPU))
    assert output.shape == (0, 2, 8)
    for tensor, gradient in zip(
        tensors, torch.autograd.grad(output.sum(), tensors), strict=True
    ):  # raises where a tensor is not part of the graph
        assert torch.equal(gradient, torch.zeros_like(tensor))


@pytest.mark.parametrize(
    ("segments", "borders_of", "says"),
    [
        ([(3, 2)], [(3, 2)], "segment 0 has 3 queries and 2 keys"),
        ([(3, 4)], [(2, 4)], "rise from 0 to 3"),
        ([(3, 4)], [(3, 5)], "rise from 0 to 4"),
    ],
)
def test_segments_that_cannot_be_are_refused(
    segments: list[tuple[int, int]], borders_of: list[tuple[int, int]], says: str
) -> None:
    with pytest.raises(TrainerError, match=says):
        reference(*inputs(segments, 2, 2), *segment_borders(borders_of, CPU))


def test_a_segment_longer_than_announced_is_refused() -> None:
    with pytest.raises(TrainerError, match="max_seqlen_k is 3, but a segment has 4"):
        reference(*inputs([(2, 4)], 2, 2), *segment_borders([(2, 4)], CPU)[:2], 2, 3)


def test_tensors_that_do_not_fit_are_refused() -> None:
    attend = attention_backend("reference", device="cpu", dtype=torch.float64)
    q, k, v = inputs([(2, 4)], 4, 2)
    borders = segment_borders([(2, 4)], CPU)
    for changed, says in (
        ((q.float(), k, v, *borders), "was asked for torch.float64 on cpu and is given"),
        ((q[:, :3], k, v, *borders), "kv_heads dividing heads"),
        ((q, k, v[1:], *borders), "they must be"),
        ((q, k, v, borders[0].long(), *borders[1:]), "int32"),
        ((q, k, v, borders[0], borders[1][:1], 2, 4), "1 segments of queries and 0 of keys"),
        ((q, k, v, borders[0][:1], borders[1][:1], 2, 4), "2 queries in no segment"),
    ):
        with pytest.raises(TrainerError, match=says):
            attend(*changed)


@pytest.mark.parametrize("name", ["torch", "flash_attn"])
def test_flash_attention_refuses_the_cpu_and_whole_precision(name: str) -> None:
    for device, dtype in (("cpu", torch.bfloat16), ("cuda", torch.float32)):
        with pytest.raises(TrainerError, match=f"{dtype} on {device}; the backend reference"):
            attention_backend(name, device=device, dtype=dtype)


def test_an_unknown_backend_is_refused() -> None:
    with pytest.raises(TrainerError, match="known are auto, flash_attn, reference, torch"):
        attention_backend("flash", device="cpu", dtype=torch.float32)


def test_a_missing_flash_attn_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "flash_attn", None)
    with pytest.raises(TrainerError, match="--no-build-isolation"):
        attention_kernels.load_flash_attn(torch.device("cuda"), torch.bfloat16)


def test_flash_attn_is_called_causal_in_its_own_order(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[object, ...]] = []

    def flash_attn_varlen_func(*arguments: object, **options: object) -> str:
        calls.append((arguments, options))
        return "output"

    module = ModuleType("flash_attn")
    vars(module).update(vars(SimpleNamespace(flash_attn_varlen_func=flash_attn_varlen_func)))
    monkeypatch.setitem(sys.modules, "flash_attn", module)
    kernel = attention_kernels.load_flash_attn(torch.device("cuda"), torch.bfloat16)
    kernel("q", "k", "v", "cu_q", "cu_k", 2, 4)  # pyright: ignore[reportArgumentType]
    assert calls == [(("q", "k", "v", "cu_q", "cu_k", 2, 4), {"causal": True})]


def test_torch_is_called_causal_and_grouped_only_where_heads_differ(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    options: list[object] = []

    def varlen_attn(q: Tensor, *arguments: object, **given: object) -> Tensor:
        options.append(given)
        return q

    monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", varlen_attn)
    kernel = attention_kernels.load_torch(torch.device("cuda"), torch.float16)
    for kv_heads in (1, 2):
        kernel(*inputs([(2, 4)], 2, kv_heads), *segment_borders([(2, 4)], CPU))
    assert options == [
        {"window_size": (-1, 0), "enable_gqa": True},
        {"window_size": (-1, 0), "enable_gqa": False},
    ]


def top_left(
    q: Tensor, k: Tensor, v: Tensor, cu_q: Tensor, cu_k: Tensor, max_q: int, max_k: int
) -> Tensor:
    """Causal from the first key on, as FlashAttention before 2.1: all but the first keys unseen."""
    outputs = []
    for i in range(len(cu_q) - 1):
        rows = int(cu_q[i + 1] - cu_q[i])
        keys = slice(int(cu_k[i]), int(cu_k[i]) + rows)
        outputs.append(
            reference(
                q[cu_q[i] : cu_q[i + 1]], k[keys], v[keys], *segment_borders([(rows, rows)], CPU)
            )
        )
    return torch.cat(outputs)


def no_borders(
    q: Tensor, k: Tensor, v: Tensor, cu_q: Tensor, cu_k: Tensor, max_q: int, max_k: int
) -> Tensor:
    return reference(q, k, v, *segment_borders([(len(q), len(k))], CPU))


def not_causal(
    q: Tensor, k: Tensor, v: Tensor, cu_q: Tensor, cu_k: Tensor, max_q: int, max_k: int
) -> Tensor:
    output = reference(q, k, v, cu_q, cu_k, max_q, max_k)
    return output + 0.1 * output.roll(-1, 0)


def wrong_gradient(
    q: Tensor, k: Tensor, v: Tensor, cu_q: Tensor, cu_k: Tensor, max_q: int, max_k: int
) -> Tensor:
    return reference(q, k.detach() + 0.9 * (k - k.detach()), v, cu_q, cu_k, max_q, max_k)


def does_not_run(
    q: Tensor, k: Tensor, v: Tensor, cu_q: Tensor, cu_k: Tensor, max_q: int, max_k: int
) -> Tensor:
    raise NotImplementedError("no kernel image\nwith a second line")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_the_proof_accepts_rounding(dtype: torch.dtype) -> None:
    prove("right", reference, CPU, dtype, 64)


@pytest.mark.parametrize(
    ("kernel", "says"),
    [
        (top_left, "output is off"),
        (no_borders, "output is off"),
        (not_causal, "output is off"),
        (wrong_gradient, "gradient of k is off"),
        (does_not_run, "does not run on cpu .*head_dim 64: no kernel image$"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_kernel_that_is_not_this_attention_is_refused_when_asked_for(
    kernel: VarlenAttention, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(attention.BACKENDS, "new", lambda device, dtype: kernel)
    with pytest.raises(TrainerError, match=says):
        attention_backend("new", device="cpu", dtype=torch.bfloat16)


def test_errors_are_told_apart() -> None:
    errors = kernel_errors(wrong_gradient, [(5, 9)], CPU, torch.float64, 8)
    assert errors["output"] == errors["gradient of q"] == errors["gradient of v"] == 0
    assert errors["gradient of k"] == pytest.approx(0.1)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("head_dim", [64, 128])
def test_torch_on_a_gpu_is_the_reference(dtype: torch.dtype, head_dim: int) -> None:
    attention_backend("torch", device="cuda", dtype=dtype, head_dim=head_dim)
