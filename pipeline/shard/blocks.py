"""Memory for micro-batches that is used again once nobody holds what was in it.

Micro-batches are megabytes and each of another size, which allocators give back to the system and
ask for again: page faults then cost as much as reading. So a few blocks are kept. A block is free
when nothing refers to it but ours, which the interpreter's reference count tells: arrays, tensors
and memoryviews made of it all count.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from threading import Lock

import numpy as np

_KEPT = 8


class Blocks:
    """Blocks of bytes, at most `kept` of them; for any number of threads."""

    def __init__(self, kept: int = _KEPT) -> None:
        self._kept = kept
        self._blocks: list[np.ndarray] = []  # ascending by size
        self._lock = Lock()

    def take(self, shape: tuple[int, ...], dtype: str | np.dtype) -> np.ndarray:
        """An array of this shape with anything in it, for the caller alone."""
        kind = np.dtype(dtype)
        size = math.prod(shape) * kind.itemsize
        with self._lock:
            return self._block(size)[:size].view(kind).reshape(shape)

    def _block(self, size: int) -> np.ndarray:
        """The smallest free block that is large enough, or a new one."""
        for place, holders in enumerate(_holders(self._blocks)):
            if holders == _ONLY_OURS and len(self._blocks[place]) >= size:
                return self._blocks[place]
        if len(self._blocks) == self._kept:
            del self._blocks[0]  # whoever holds it keeps it
        block = np.empty(size, np.uint8)
        self._blocks.append(block)
        self._blocks.sort(key=len)
        return block


def _holders(blocks: Sequence[np.ndarray]) -> list[int]:
    """How many refer to each block; how this counts its own differs between interpreters."""
    return [sys.getrefcount(block) for block in blocks]


_ONLY_OURS = _holders([np.empty(1, np.uint8)])[0]
