"""Times of one decoder layer's two halves: attention, and all the rest.

Both run forward and backward, gradients of weights included, as one rank computes them; nothing is
sent. Where tensor parallelism shares the layer, norms and residuals see a share of the tokens
(sequence parallelism).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from trainer.attention import attention_backend
from trainer.attention_kernels import VarlenAttention
from trainer.attention_proof import segment_borders
from trainer.shape import LayerShape
from trainer.timing import Clock, enough_memory

TILE = 128
"""Query rows, and keys, of a tile of the attention kernel."""
_BLOCKS_A_PROCESSOR = 32
"""Tiles of queries times heads, over the device's processors, at which it counts as full."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerTimes:
    """Measures a rank's share of one layer."""

    shape: LayerShape
    attend: VarlenAttention
    dtype: torch.dtype
    clock: Clock

    @classmethod
    def on(
        cls,
        shape: LayerShape,
        *,
        backend: str,
        device: torch.device,
        dtype: torch.dtype,
        repeats: int,
    ) -> LayerTimes:
        """With a backend that has been proven on this device for this head_dim.

        Raises:
            TrainerError: the backend cannot serve there.
        """
        attend = attention_backend(backend, device=device, dtype=dtype, head_dim=shape.head_dim)
        clock = Clock(device=device, repeats=repeats)
        return cls(shape=shape, attend=attend, dtype=dtype, clock=clock)

    def attention_ms(self, segments: Sequence[tuple[int, int]]) -> float:
        """One call of attention over segments of (queries, keys), and its backward pass.

        Raises:
            TrainerError: the device has not enough memory.
        """
        with enough_memory(self.clock.device):
            return self._attention_ms(segments)

    def _attention_ms(self, segments: Sequence[tuple[int, int]]) -> float:
        shape, device = self.shape, self.clock.device
        num_q, num_k = (sum(segment[side] for segment in segments) for side in (0, 1))
        q, pull = (self._normal(num_q, shape.heads, shape.head_dim) for _ in range(2))
        k, v = (self._normal(num_k, shape.kv_heads, shape.head_dim) for _ in range(2))
        inputs = [tensor.requires_grad_() for tensor in (q, k, v)]
        borders = segment_borders(segments, device)
        return self.clock.median_ms(
            lambda: torch.autograd.grad(self.attend(q, k, v, *borders), inputs, pull)
        )

    def saturating(self, queries: int, keys: int) -> int:
        """How many chunks of that shape in one call keep the device busy and fit its memory."""
        device, shape = self.clock.device, self.shape
        if device.type != "cuda":
            return 1
        processors = torch.cuda.get_device_properties(device).multi_processor_count
        blocks = -(-queries // TILE) * shape.heads
        wanted = -(-_BLOCKS_A_PROCESSOR * processors // blocks)
        element = self.dtype.itemsize * shape.head_dim
        # Keys, values, their gradients, and those a query head before they are summed; queries,
        # outputs, what is pulled, gradients, and sums in float32.
        a_key = element * (4 * shape.kv_heads + 2 * shape.heads)
        a_query = element * 4 * shape.heads + 8 * shape.head_dim * shape.heads
        torch.cuda.empty_cache()  # what torch holds back would count as taken
        memory = torch.cuda.mem_get_info(device)[0] // 2
        return max(1, min(wanted, memory // (a_key * keys + a_query * queries)))

    def linear_calls(self) -> Callable[[int], float]:
        """A function from tokens to the milliseconds of all but attention; weights made once.

        Raises:
            TrainerError: the device has not enough memory; the function does likewise.
        """
        shape, dim = self.shape, self.shape.head_dim
        widths = {
            "q": (shape.heads * dim, shape.hidden),
            "k": (shape.kv_heads * dim, shape.hidden),
            "v": (shape.kv_heads * dim, shape.hidden),
            "o": (shape.hidden, shape.heads * dim),
            "gate": (shape.intermediate, shape.hidden),
            "up": (shape.intermediate, shape.hidden),
            "down": (shape.hidden, shape.intermediate),
            "norm_1": (shape.hidden,),
            "norm_2": (shape.hidden,),
        }
        with enough_memory(self.clock.device):
            weights = {
                name: (self._normal(*width) * 0.02).requires_grad_()
                for name, width in widths.items()
            }

        def milliseconds(tokens: int) -> float:
            with enough_memory(self.clock.device):
                return self._linear_ms(tokens, weights)

        return milliseconds

    def _linear_ms(self, tokens: int, weights: dict[str, Tensor]) -> float:
        hidden, dim = self.shape.hidden, self.shape.head_dim
        local = -(-tokens // self.shape.tp_size)
        x = self._normal(local, hidden).requires_grad_()
        gathered = [self._normal(tokens, hidden).requires_grad_() for _ in range(2)]
        angle = torch.rand(tokens, 1, dim // 2, device=self.clock.device, dtype=self.dtype)
        turns = angle.cos(), angle.sin()
        inputs = [x, *gathered, *weights.values()]

        def outputs() -> list[Tensor]:
            """The layer's parts, each from leaves of its own where something would be sent."""
            normed = functional.rms_norm(x, (hidden,), weights["norm_1"])
            added = x + normed
            normed_again = functional.rms_norm(added, (hidden,), weights["norm_2"])
            first, second = gathered
            q, k, v = (
                functional.linear(first, weights[name]).unflatten(1, (-1, dim)) for name in "qkv"
            )
            q, k = _turned(q, *turns), _turned(k, *turns)
            mixed = functional.linear(q.flatten(1), weights["o"])  # q in the place of attention
            gate = functional.silu(functional.linear(second, weights["gate"]))
            fed = functional.linear(
                gate * functional.linear(second, weights["up"]), weights["down"]
            )
            return [added + normed_again, k, v, mixed, fed]

        pulls = [torch.ones_like(output) for output in outputs()]
        return self.clock.median_ms(lambda: torch.autograd.grad(outputs(), inputs, pulls))

    def _normal(self, *sizes: int) -> Tensor:
        return torch.randn(*sizes, device=self.clock.device, dtype=self.dtype)


def _turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary positions; x (tokens, heads, head_dim), cos and sin (tokens, 1, head_dim / 2)."""
    left, right = x.chunk(2, dim=-1)
    return torch.cat((left * cos - right * sin, right * cos + left * sin), dim=-1)
