"""Which source comes next.

The next piece comes from the source that is furthest behind its quota: the largest
weight x tokens emitted so far - its own tokens emitted, ties by source order. This depends on
running totals alone, so it can stop and go on anywhere.

The bounds, after every piece and not only at the stream's end: a source is never ahead of its
quota by more than the last piece it has emitted, and never behind by more than
1 + 1/2 + ... + 1/(n - 1) longest pieces, n the number of sources. When a source is dropped, those
left have quotas of the tokens that they alone have emitted, and what the dropped one was behind is
shared among them: after r drops nobody is ahead by more than before, nor behind by more than
(r + 1) (1/(r + 1) + ... + 1/(n - 1)) longest pieces.

Why: let B(k) bound what any k sources are behind together. Of the source that is furthest behind
and any k others, the k hold at most k/(k + 1) of B(k + 1), and a piece adds at most itself to them.
So B(k) = k (1/k + ... + 1/(n - 1)) holds for ever if it holds at the start. A drop makes B(k) of
B(k + 1), since the one that is dropped is the furthest behind.

Weights are integers w that sum to at most 2^30, W their sum over the sources still in; a quota's
deficit is kept times W, exact in int64: it grows by w x tokens for every piece of any source, and
falls by W x tokens for a piece of its own. By the bounds it stays below n x S x 2^30, which
`Stream` keeps below 2^63.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from packer.jit import kernel
from packer.plan import Int64

WEIGHT_SUM = 1 << 30
ALL_PICKED = -1
"""The merge stopped because there is no room for more picks."""
TARGET_REACHED = -2
"""The merge stopped because the next piece would exceed the target."""


def integer_weights(weights: Sequence[float | int]) -> Int64:
    """Weights as integers that sum to exactly 2^30, by largest remainder, each at least 1.

    A weight counts as the decimal that it is written as, so 0.3 and 0.7 are the same as 30 and 70.
    All of it is exact, for weights of any magnitudes.

    Args:
        weights: positive and finite, one a source, in any unit.

    Returns:
        int64 (sources,). A weight is off by less than 2^-30 of the whole, unless it is below
        that itself: then it counts as 2^-30, and the largest weight pays.
    """
    exact = [Fraction(str(weight)) for weight in weights]
    shares = [weight * WEIGHT_SUM / sum(exact) for weight in exact]
    whole = [max(1, int(share)) for share in shares]
    by_remainder = sorted(range(len(shares)), key=lambda i: whole[i] - shares[i])  # stable
    for i in by_remainder[: max(0, WEIGHT_SUM - sum(whole))]:
        whole[i] += 1
    whole[whole.index(max(whole))] += WEIGHT_SUM - sum(whole)  # what the raised ones took
    return np.array(whole, dtype=np.int64)


class Mixer:
    """Running totals of a mixture, and the choice that follows from them.

    Args:
        weights: int64 (sources,), see `integer_weights`.
        target_tokens: end before the piece that would exceed this.
    """

    def __init__(self, weights: Int64, *, target_tokens: int) -> None:
        self._weight = weights.copy()
        self._deficit = np.zeros_like(weights)
        self._target_tokens = target_tokens
        self.emitted_tokens: Int64 = np.zeros_like(weights)
        """Tokens emitted so far by each source, (sources,)."""
        self._extremes = np.zeros((2, len(weights)), dtype=np.int64)  # deficit: most, least
        self._deviation = np.zeros((2, len(weights)), dtype=np.int64)

    def pick(self, tokens: Int64, head: Int64, tail: Int64, picked: Int64) -> tuple[int, int]:
        """Pick pieces until `picked` is full, a source's queue is empty or the target is reached.

        Args:
            tokens: of the pieces in the queues, (slots,).
            head: first slot of each source's queue, (sources,); advanced past what is picked.
            tail: slot after the last one of each queue, (sources,).
            picked: receives slots in stream order.

        Returns:
            Number of picks, and what ended them: `ALL_PICKED`, `TARGET_REACHED`, or the source
            whose turn it is and whose queue is empty.
        """
        room = self._target_tokens - int(self.emitted_tokens.sum())
        return merge_queues(
            tokens,
            head,
            tail,
            self._weight,
            self._deficit,
            self._extremes,
            self.emitted_tokens,
            room,
            picked,
        )

    def deviation(self) -> Int64:
        """The furthest that each source has been from its quota, in tokens, rounded up.

        Returns:
            int64 (2, sources): behind, ahead; taken after every piece so far.
        """
        scale = int(self._weight.sum()) or 1
        # Behind is furthest just before a source's turn, ahead just after; only those still
        # waiting for a turn may be further behind by now.
        behind = np.maximum(self._extremes[0], self._deficit)
        extremes = np.stack([behind, -self._extremes[1]])
        return np.maximum(self._deviation, -(-extremes // scale))

    def drop(self, source: int) -> bool:
        """Take a source out and share its quota among the rest; False if it was the last.

        The quotas of those left are taken of the tokens that they alone have emitted.
        """
        self._deviation = self.deviation()
        self._extremes[:] = 0
        self._weight[source] = 0
        scale = int(self._weight.sum())
        left = [int(i) for i in np.flatnonzero(self._weight)]
        total = sum(int(self.emitted_tokens[i]) for i in left)
        self._deficit[source] = 0
        for i in left:  # Python integers: the products pass 2^63, their difference does not
            own = int(self.emitted_tokens[i])
            self._deficit[i] = int(self._weight[i]) * total - scale * own
        return bool(left)


@kernel
def merge_queues(
    tokens: Int64,
    head: Int64,
    tail: Int64,
    weight: Int64,
    deficit: Int64,
    extremes: Int64,
    emitted_tokens: Int64,
    room: int,
    picked: Int64,
) -> tuple[int, int]:
    """The loop of `Mixer.pick`; a source of weight 0 is out, at least one is in.

    `extremes` are the largest and the least deficits seen at a source's turns, (2, sources).
    """
    scale = 0
    for source in range(len(weight)):
        scale += weight[source]
    for count in range(len(picked)):
        behind = -1
        for source in range(len(weight)):
            if weight[source] > 0 and (behind < 0 or deficit[source] > deficit[behind]):
                behind = source
        if head[behind] == tail[behind]:
            return count, behind
        length = int(tokens[head[behind]])
        if length > room:
            return count, TARGET_REACHED
        picked[count] = head[behind]
        head[behind] += 1
        room -= length
        emitted_tokens[behind] += length
        extremes[0, behind] = max(extremes[0, behind], deficit[behind])
        for source in range(len(weight)):
            deficit[source] += weight[source] * length
        deficit[behind] -= scale * length
        extremes[1, behind] = min(extremes[1, behind], deficit[behind])
    return len(picked), ALL_PICKED
