"""Which parts a sample of a set reads."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """A share of the parts of each kind, and at least one.

    Args:
        share: above 0 and below 1.
        seed: another seed takes other parts.

    Raises:
        ValueError: a share out of its bounds.
    """

    share: float
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.share < 1:
            raise ValueError(
                f"a sample of {self.share:g} of the parts; it must be above 0 and below 1, and "
                "without a sample all of them are read"
            )

    def of(self, kind: str, count: int) -> tuple[int, ...]:
        """Numbers below `count`, ascending; those of one kind say nothing about another's."""
        chosen = min(count, math.ceil(self.share * count))
        return tuple(sorted(random.Random(f"{self.seed}/{kind}").sample(range(count), chosen)))
