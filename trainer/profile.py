"""A measured profile: what pieces, chunks and tokens of one layer take on this device.

`steelyard profile` writes it, `packer.profile` reads it, docs/WORKLOAD.md describes it. Each
attention call is made of as many segments of one shape as fill the device, since a micro-batch's
pieces run in one call too; a lone short chunk would be charged for processors that idle.

All but attention is a straight line over a micro-batch's tokens, a + b t; a is the profile's
constant, what launches cost that no work hides.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from trainer.errors import TrainerError
from trainer.layer_times import TILE, LayerTimes

LEAST_TOKENS, MOST_TOKENS = 256, 1 << 26
_SHORTEST = 16
_LINEAR_TOKENS = (2048, 32_768)
"""Between these: with fewer tokens products wait for weights, which a whole micro-batch's do not,
and more only fill memory with activations."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """What is measured; all ascending."""

    pieces: tuple[int, ...]
    """Tokens of whole pieces."""
    chunks: tuple[int, ...]
    """Queries, and keys, of chunks."""
    linear: tuple[int, ...]
    """Tokens of a micro-batch without attention."""

    @classmethod
    def up_to(cls, max_tokens: int, factor: int = 2) -> Sizes:
        """Powers of two, or only those `factor` apart, and `max_tokens` itself.

        Raises:
            TrainerError: `max_tokens` is out of range.
        """
        if not LEAST_TOKENS <= max_tokens <= MOST_TOKENS:
            raise TrainerError(
                f"the longest piece has {max_tokens} tokens; it must have {LEAST_TOKENS} to "
                f"{MOST_TOKENS}"
            )

        def rising(first: int, last: int) -> tuple[int, ...]:
            tokens = [first]
            while tokens[-1] * factor < last:
                tokens.append(tokens[-1] * factor)
            return (*tokens, last)

        return cls(
            pieces=rising(_SHORTEST, max_tokens),
            chunks=rising(TILE, max_tokens),
            linear=rising(
                min(_LINEAR_TOKENS[0], max_tokens // 8), min(_LINEAR_TOKENS[1], max_tokens)
            ),
        )

    @property
    def num_measurements(self) -> int:
        """How many times `measure_profile` reports progress."""
        return 2 + len(self.pieces) + len(self.linear) + len(_pairs(self.chunks))


def measure_profile(
    times: LayerTimes, sizes: Sizes, about: dict[str, Any], advance: Callable[[], None]
) -> dict[str, Any]:
    """The document of a profile file, in milliseconds of one layer, forward and backward.

    Points that are not above all shorter ones are noise: the fewest are left out that make a table
    rise, and `about.dropped` lists them.

    Args:
        times: measures one layer on one device.
        sizes: at which.
        about: what the file says of where it was measured.
        advance: called after each of `sizes.num_measurements` measurements.

    Raises:
        TrainerError: not enough memory, or nothing but noise.
    """

    def measured(milliseconds: float) -> float:
        advance()
        return milliseconds

    linear_ms = times.linear_calls()
    one_token = {
        "linear": measured(linear_ms(1)),
        "attention": measured(times.attention_ms([(1, 1)])),
    }
    linear = [measured(linear_ms(tokens)) for tokens in sizes.linear]
    constant = min(max(intercept(sizes.linear, linear), 0.0), one_token["linear"])
    pieces, throughput = [], []
    for tokens in sizes.pieces:
        count = times.saturating(tokens, tokens)
        pieces.append(measured(times.attention_ms([(tokens, tokens)] * count)) / count)
    for queries, keys in _pairs(sizes.chunks):
        count = times.saturating(queries, keys)
        whole = measured(times.attention_ms([(queries, keys)] * count))
        throughput.append(tile_area(queries, keys) * count / whole)
    linear_table, linear_dropped = rising_table(
        sizes.linear, [time - constant for time in linear], "linear"
    )
    attention_table, attention_dropped = rising_table(sizes.pieces, pieces, "attention")
    return {
        "format": "steelyard-profile",
        "version": 1,
        "about": {
            **about,
            "unit": "ms",
            "of": "one layer, forward and backward, on one device; nothing is sent",
            "one_token": one_token,
            "dropped": {"linear": linear_dropped, "attention": attention_dropped},
        },
        "linear": linear_table,
        "attention": attention_table,
        "constant": constant,
        "throughput": {
            "query_tokens": list(sizes.chunks),
            "key_tokens": list(sizes.chunks),
            "achieved": _filled(sizes.chunks, throughput),
        },
    }


def intercept(tokens: Sequence[int], times: Sequence[float]) -> float:
    """Where the straight line begins that is nearest to the times, by relative error squared."""
    weight = [1 / (time * time) for time in times]
    total = sum(weight)
    mean_tokens = sum(w * t for w, t in zip(weight, tokens, strict=True)) / total
    mean_time = sum(w * time for w, time in zip(weight, times, strict=True)) / total
    spread = sum(w * (t - mean_tokens) ** 2 for w, t in zip(weight, tokens, strict=True))
    slope = (
        sum(
            w * (t - mean_tokens) * (time - mean_time)
            for w, t, time in zip(weight, tokens, times, strict=True)
        )
        / spread
    )
    return mean_time - slope * mean_tokens


def tile_area(queries: int, keys: int) -> int:
    """Query-key pairs that a kernel of 128 x 128 tiles computes for the last queries of some keys.

    Tiles of queries begin at the chunk's first, and see keys up to their last row, rounded up.

    Example: the last 200 of 1,000 keys are tiles of 128 rows up to row 927 (1,024 keys) and of 72
    up to row 999 (1,024 keys): 2 x 128 x 1,024.
    """
    start = keys - queries
    last_rows = [min(row + TILE, keys) for row in range(start, keys, TILE)]
    return sum(TILE * -(-last // TILE) * TILE for last in last_rows)


def rising_table(
    tokens: Sequence[int], times: Sequence[float], name: str
) -> tuple[dict[str, list[Any]], list[int]]:
    """The longest part of a table whose times are positive and strictly rise.

    Returns:
        The table, and the tokens of the points that were left out.

    Raises:
        TrainerError: fewer than two points are left.
    """
    # The last point of the best rising part of each length so far, and of each point the one
    # before it in such a part.
    ends: list[int] = []
    before: dict[int, int | None] = {}
    for i, time in enumerate(times):
        if time <= 0:
            continue
        place = bisect.bisect_left([times[end] for end in ends], time)
        before[i] = ends[place - 1] if place else None
        ends[place : place + 1] = [i]
    kept: list[int] = []
    at = ends[-1] if ends else None
    while at is not None:
        kept.append(at)
        at = before[at]
    kept.reverse()
    if len(kept) < 2:
        raise TrainerError(
            f"the {name} times of {list(tokens)} tokens do not rise: {list(times)}; they are "
            "noise. Measure longer pieces (--max-tokens), more often (--repeats), or on a machine "
            "that does nothing else"
        )
    table = {"tokens": [tokens[i] for i in kept], "time": [times[i] for i in kept]}
    return table, [count for i, count in enumerate(tokens) if i not in kept]


def _pairs(chunks: Sequence[int]) -> list[tuple[int, int]]:
    """(queries, keys) of chunks, all that can be: keys at least as many."""
    return [(queries, keys) for queries in chunks for keys in chunks if keys >= queries]


def _filled(chunks: Sequence[int], achieved: Sequence[float]) -> list[list[float]]:
    """A full table from that of `_pairs`.

    Chunks have no fewer keys than queries. Such entries still take part in the interpolation of
    whole pieces between two sizes, so they go on as a product would, (b, a) = (a, a) (b, b) / (a,
    b) for a < b, within the range of what was measured.
    """
    known = dict(zip(_pairs(chunks), achieved, strict=True))
    table: list[list[float]] = []
    for i, queries in enumerate(chunks):
        row = [known.get((queries, keys), 0.0) for keys in chunks]
        for j in reversed(range(i)):
            filled = row[j + 1] * table[i - 1][j] / table[i - 1][j + 1]
            row[j] = min(max(filled, min(achieved)), max(achieved))
        table.append(row)
    return table
