"""Plans of a few lengths, and how to look at them."""

from __future__ import annotations

import numpy as np

from packer.plan import Steps
from packer.workload import Workload

SQUARE = Workload(crossover=1)
"""W(d) = d + d^2."""


def lengths_of(steps: Steps | None) -> list[list[list[int]]]:
    """Tokens of the pieces, slot by slot, step by step."""
    assert steps is not None
    slots = [part.tolist() for part in np.split(steps.pieces.tokens, steps.row_offsets[1:-1])]
    num = steps.num_micro_batches
    return [slots[start : start + num] for start in range(0, len(slots), num)]
