"""Slow twins of the shuffle and the mixture: Python integers, whole lists, no cleverness."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction

WORD = 1 << 64


def mix(word: int) -> int:
    """The finaliser of splitmix64."""
    word %= WORD
    word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9 % WORD
    word = (word ^ (word >> 27)) * 0x94D049BB133111EB % WORD
    return word ^ (word >> 31)


def splitmix(seed: int, count: int) -> list[int]:
    return [mix(seed + (i + 1) * 0x9E3779B97F4A7C15) for i in range(count)]


def permuted(index: int, size: int, key: int) -> int:
    """Six Feistel rounds over two halves of equal bits, again until the place is below size."""
    half = 2
    while 4**half < size:
        half += 1
    place = index
    while True:
        left, right = divmod(place, 2**half)
        for round_key in splitmix(key, 6):
            left, right = right, left ^ (mix(right + round_key) % 2**half)
        place = left * 2**half + right
        if place < size:
            return place


def key_of(seed: int, source: int, epoch: int) -> int:
    [key] = splitmix(seed, 1)
    [key] = splitmix(key ^ source, 1)
    [key] = splitmix(key ^ epoch, 1)
    return key


@dataclass
class SlowEpoch:
    """What earlier segments of a chain have run of an epoch, and left of it."""

    begun: set[int]
    """Documents of which something has run."""
    left: list[tuple[int, int, int]]
    """doc_id, start, stop of what is left of these, ascending."""
    run_tokens: int


@dataclass
class SlowSource:
    lengths: Sequence[int]
    weight: int
    """An integer; all of them sum to 2^30."""
    max_epochs: Fraction
    min_tokens: int = 1
    longer_than_context: str = "cut"
    earlier: list[SlowEpoch] = field(default_factory=list)
    """Of epochs 0, 1, .., to the last that earlier segments began."""
    number: int | None = None
    """In the chain; its place among the sources where not given."""


Piece = tuple[int, int, int, int, int]
"""source, epoch, doc_id, doc_start, doc_stop."""


def taken(source: SlowSource, doc_id: int, longest: int) -> int:
    """Tokens that a pass takes of a document."""
    length = source.lengths[doc_id]
    if length < source.min_tokens:
        return 0
    if length <= longest or source.longer_than_context == "cut":
        return length
    return longest if source.longer_than_context == "truncate" else 0


def epoch_pieces(
    source: SlowSource, number: int, epoch: int, seed: int, longest: int
) -> list[Piece]:
    """One pass: first pieces of all documents, then all the extra ones, shuffled, then sifted.

    Of an epoch that earlier segments began, what they left of begun documents comes after these.
    """
    earlier = source.earlier[epoch] if epoch < len(source.earlier) else SlowEpoch(set(), [], 0)
    tokens = [taken(source, d, longest) for d in range(len(source.lengths))]
    ordered = [(d, 0) for d in range(len(source.lengths))]
    for d in range(len(source.lengths)):
        ordered += [(d, start) for start in range(longest, tokens[d], longest)]
    first_left = len(ordered)
    stops = [min(start + longest, tokens[d]) for d, start in ordered]
    for d, first, stop in earlier.left:
        for start in range(first, stop, longest):
            ordered.append((d, start))
            stops.append(min(start + longest, stop))
    size, key = len(ordered), key_of(seed, number, epoch)
    shuffled = [permuted(i, size, key) for i in range(size)]
    return [
        (number, epoch, *ordered[place], stops[place])
        for place in shuffled
        if place >= first_left
        or (tokens[ordered[place][0]] and ordered[place][0] not in earlier.begun)
    ]


def all_pieces(source: SlowSource, number: int, seed: int, longest: int) -> list[Piece]:
    """All passes; the last one, if it is a part of one, ends before the first piece too many."""
    whole = int(source.max_epochs)
    out = [p for e in range(whole) for p in epoch_pieces(source, number, e, seed, longest)]
    tokens = sum(taken(source, d, longest) for d in range(len(source.lengths)))
    room = int((source.max_epochs - whole) * tokens)
    if whole < len(source.earlier):
        room -= source.earlier[whole].run_tokens
    for piece in epoch_pieces(source, number, whole, seed, longest):
        room -= piece[4] - piece[3]
        if room < 0:
            break
        out.append(piece)
    return out


def stream(
    sources: Sequence[SlowSource], *, seed: int, longest: int, target: int | None, stop: bool
) -> list[Piece]:
    """The whole stream, each choice from exact totals."""
    numbers = [place if s.number is None else s.number for place, s in enumerate(sources)]
    queues = [all_pieces(s, n, seed, longest) for n, s in zip(numbers, sources, strict=True)]
    emitted = [0] * len(sources)
    left = set(range(len(sources)))
    out: list[Piece] = []
    while left:
        weight_sum = sum(sources[i].weight for i in left)
        total = sum(emitted[i] for i in left)

        def behind(
            i: int, weight_sum: int = weight_sum, total: int = total
        ) -> tuple[Fraction, int]:
            return Fraction(sources[i].weight * total, weight_sum) - emitted[i], -i

        chosen = max(left, key=behind)
        if not queues[chosen]:
            if stop:
                break
            left.remove(chosen)
            continue
        tokens = queues[chosen][0][4] - queues[chosen][0][3]
        if target is not None and sum(emitted) + tokens > target:
            break
        out.append(queues[chosen].pop(0))
        emitted[chosen] += tokens
    return out
