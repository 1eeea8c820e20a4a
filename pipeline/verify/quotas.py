"""The mixture along the stream: after every piece each source is where its weight says."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from pipeline.shard.manifest import Segment
from pipeline.verify.selection import SourcePasses

_WEIGHT_BITS = 30
"""Weights may be rounded to this many bits of their sum."""


class Quotas:
    """Follows a stream, piece by piece in its order.

    Until a source drops out, none is ahead of its quota by more than a piece, or behind by more
    than 1 + 1/2 + ... + 1/(n - 1) pieces of S tokens, n the number of sources.

    Args:
        segment: of the stream.
        passes: that may be taken over each of its sources.
        until: the stream position at which a source may first have dropped out.
    """

    def __init__(self, segment: Segment, passes: Sequence[SourcePasses], until: int) -> None:
        weights = [
            Fraction(own.first.tokens if own.entry.weight is None else str(own.entry.weight))
            for own in passes
        ]
        self._sources = [entry.source for entry in segment.sources]
        self._shares = [float(weight / sum(weights)) for weight in weights]
        self._ahead = segment.context_length
        self._behind = segment.context_length * sum(Fraction(1, k) for k in range(1, len(weights)))
        self._until = until
        self._emitted = np.zeros(len(weights), np.int64)

    def first_offender(self, source: np.ndarray, tokens: np.ndarray) -> tuple[int, str] | None:
        """Take the next pieces; the first one after which the mixture does not hold, and how.

        Args:
            source: of each piece, (pieces,).
            tokens: of each piece, (pieces,).
        """
        before = int(self._emitted.sum())
        total = before + np.cumsum(tokens)
        slack = 1 + total * (len(self._shares) / (1 << _WEIGHT_BITS))
        checked = total <= self._until
        found: list[tuple[int, str]] = []
        for index, (number, share) in enumerate(zip(self._sources, self._shares, strict=True)):
            own = self._emitted[index] + np.cumsum(np.where(source == number, tokens, 0))
            surplus = own - share * total
            self._emitted[index] = own[-1] if len(own) else self._emitted[index]
            good = (surplus <= self._ahead + slack) & (-surplus <= float(self._behind) + slack)
            if not (good | ~checked).all():
                at = int(np.argmin(good | ~checked))
                found.append((at, _say(number, own[at], share, int(total[at]))))
        return min(found, default=None)


def _say(source: int, own: int, share: float, total: int) -> str:
    return (
        f"is where source {source} has {own} of the stream's {total} tokens, too far from the "
        f"{share * total:.0f} that its weight gives it"
    )
