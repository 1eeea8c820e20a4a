"""1F1B over micro-batches of any lengths: one forward, one backward, in turn.

Every rank reads all shapes off the plan, so nothing is said before a transfer, and buffers are made
anew for each. A stage runs ahead by as many forwards as stages follow it; then each forward is
followed by the backward of the oldest micro-batch; then the backwards that are left. Works for any
number of micro-batches, fewer than stages too.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from trainer.communication import Mesh

Forward = Callable[[int, Tensor | None], Tensor]
"""(micro-batch, activations of the stage before) to this stage's, or on the last to the loss."""
Backward = Callable[[int, Tensor, Tensor | None], None]
"""(micro-batch, what forward gave, its gradient); no gradient on the last stage."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wire:
    """Activations to the next stage, their gradients back, for one step.

    Args:
        mesh: the neighbours are along its pp axis.
        shapes: of the activations of each micro-batch, in the order in which they run.
        dtype: of activations and gradients.
    """

    mesh: Mesh
    shapes: Sequence[tuple[int, int]]
    dtype: torch.dtype

    def move(
        self,
        *,
        activation: tuple[int, Tensor] | None = None,
        gradient: tuple[int, Tensor] | None = None,
        wanted_activation: int | None = None,
        wanted_gradient: int | None = None,
    ) -> Tensor | None:
        """Send and receive at once what belongs together; gives what was wanted, at most one.

        To send a micro-batch's activations is nothing on the last stage, its gradient nothing on
        the first, and so is to want what no stage sends.
        """
        first, last = self.mesh.is_first_stage, self.mesh.is_last_stage
        operations: list[dist.P2POp] = []
        received: Tensor | None = None
        for sent, skip, step in ((activation, last, 1), (gradient, first, -1)):
            if sent is not None and not skip:
                number, tensor = sent
                found, planned = (tensor.dtype, *tensor.shape), (self.dtype, *self.shapes[number])
                assert found == planned, f"micro-batch {number}: {found}, the plan says {planned}"
                operations.append(self._operation(dist.isend, tensor.detach().contiguous(), step))
        for wanted, skip, step in ((wanted_activation, first, -1), (wanted_gradient, last, 1)):
            if wanted is not None and not skip:
                shape = self.shapes[wanted]
                received = torch.empty(shape, dtype=self.dtype, device=self.mesh.device)
                operations.append(self._operation(dist.irecv, received, step))
        if operations:
            for request in dist.batch_isend_irecv(operations):
                request.wait()
        return received

    def _operation(self, kind: Callable, tensor: Tensor, step: int) -> dist.P2POp:
        group = self.mesh.group("pp")
        return dist.P2POp(kind, tensor, group=group, group_peer=self.mesh.rank("pp") + step)


def one_forward_one_backward(forward: Forward, backward: Backward, wire: Wire) -> None:
    """Run a step's micro-batches through this stage, backwards in the order of the forwards.

    Args:
        forward: called for each micro-batch in order.
        backward: leaves the gradient of the activations that `forward` was given in their `grad`.
        wire: to the neighbours.
    """
    num = len(wire.shapes)
    ahead = min(wire.mesh.size("pp") - 1 - wire.mesh.rank("pp"), num)
    held: deque[tuple[int, Tensor | None, Tensor]] = deque()

    def run_forward(number: int, x: Tensor | None) -> Tensor:
        y = forward(number, None if x is None else x.requires_grad_())
        held.append((number, x, y))
        return y

    def run_backward(gradient: Tensor | None) -> tuple[int, Tensor] | None:
        number, x, y = held.popleft()
        backward(number, y, gradient)
        if x is None:
            return None
        assert x.grad is not None
        return number, x.grad

    for number in range(ahead):
        y = run_forward(number, wire.move(wanted_activation=number))
        wire.move(activation=(number, y))
    x = wire.move(wanted_activation=ahead) if ahead < num else None
    for number in range(ahead, num):
        y = run_forward(number, x)
        gradient = run_backward(wire.move(activation=(number, y), wanted_gradient=number - ahead))
        following = number + 1 if number + 1 < num else None
        x = wire.move(gradient=gradient, wanted_activation=following)
    for number in range(num - ahead, num):
        wire.move(gradient=run_backward(wire.move(wanted_gradient=number)))
