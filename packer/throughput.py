"""How fast attention runs, by the shape of a chunk.

A chunk of queries [s, e) of a piece attends to the keys [0, e): q = e - s queries, e keys. Its work
is its tile-padded area (`packer.context_parallel.kernels.tile_area`); its time is that area over
the throughput that the kernel reaches on chunks of its shape when there are enough of them to fill
the GPU. Only ratios to the largest throughput matter: an area is weighted by how many times slower
than the fastest shape its shape is, and the fastest shapes keep their area as it is.

A grid has throughput at some numbers of queries and keys. Between them it goes linearly in both,
outside it stays what it is at the border. `packer.throughput_kernels` computes it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

MOST_SIZES = 256
"""Of an axis, so that a manifest stays small."""
MOST_TOKENS = 1 << 26
"""Longest piece, as in `packer.profile`."""
MOST_SLOWDOWN = 1024
"""Largest throughput over the smallest: a weighted area is below 2^62, areas being below 2^52."""
TILE = 128
"""Query rows, and keys, of a tile of the attention kernel."""
_FIELDS = ("query_tokens", "key_tokens", "achieved")


@dataclass(frozen=True, slots=True, kw_only=True)
class Throughput:
    """Achieved throughput of attention over a grid of chunk shapes.

    No chunk has fewer keys than queries, so entries with less are no measurements. They are still
    asked for: in a cell of the grid that the diagonal crosses they take part in the interpolation.
    Where nothing better is known, repeat the entry of the same row with just enough keys;
    `from_chunks` fills them in so that whole pieces come out right.

    Args:
        query_tokens: queries of a chunk, strictly increasing.
        key_tokens: keys of a chunk, those of its own queries included, strictly increasing.
        achieved: tile-padded area a time, in any one unit, a row by query_tokens.

    Raises:
        ValueError: what is wrong with the grid.
    """

    query_tokens: tuple[int, ...]
    key_tokens: tuple[int, ...]
    achieved: tuple[tuple[float, ...], ...]

    def __post_init__(self) -> None:
        for name in ("query_tokens", "key_tokens"):
            _check_sizes(name, getattr(self, name))
        rows, columns = len(self.query_tokens), len(self.key_tokens)
        if len(self.achieved) != rows or any(len(row) != columns for row in self.achieved):
            raise ValueError(
                f"throughput.achieved has rows of {sorted({len(row) for row in self.achieved})} "
                f"numbers, {len(self.achieved)} of them; it needs {rows} rows, as query_tokens, "
                f"of {columns}, as key_tokens"
            )
        numbers = [number for row in self.achieved for number in row]
        for number in numbers:
            if not 0 < number < math.inf:
                raise ValueError(f"throughput.achieved holds {number}; it must be above 0, finite")
        if max(numbers) > min(numbers) * MOST_SLOWDOWN:
            raise ValueError(
                f"throughput.achieved goes from {min(numbers)} to {max(numbers)}; the largest may "
                f"be {MOST_SLOWDOWN} times the smallest. Measure batches that fill the GPU, and "
                "count tile-padded area"
            )

    @classmethod
    def parse(cls, value: object) -> Throughput:
        """A grid from its JSON object, checked.

        Raises:
            ValueError: what is wrong with it.
        """
        if not isinstance(value, Mapping) or set(value) != set(_FIELDS):
            raise ValueError(
                'throughput must be an object with the lists "query_tokens" and "key_tokens" and '
                'the list of lists "achieved"'
            )
        rows = value["achieved"]
        if not _is_list(rows):
            raise ValueError("throughput.achieved must be a list of lists of numbers")
        return cls(
            query_tokens=_integers("query_tokens", value["query_tokens"]),
            key_tokens=_integers("key_tokens", value["key_tokens"]),
            achieved=tuple(
                tuple(float(number) for number in _numbers("achieved", row)) for row in rows
            ),
        )

    @classmethod
    def from_chunks(
        cls,
        query_tokens: Sequence[int],
        key_tokens: Sequence[int],
        achieved: Callable[[int, int], float],
    ) -> Throughput:
        """A grid of which only what can be measured is asked for.

        Entries with fewer keys than queries continue their neighbours as a product would: in the
        cell of the queries a < b and the keys c < d, (b, c) becomes (a, c) (b, d) / (a, d), within
        the range of all that is known. So whole pieces between two lengths of the grid run between
        those, instead of at the speed of the tails beside them.

        Args:
            query_tokens: as in the class.
            key_tokens: as in the class; at least one must reach each number of queries.
            achieved: of (queries, keys), asked for keys >= queries only, a row after the other.

        Raises:
            ValueError: a number of queries that no number of keys reaches, or as the class does.
        """
        _check_sizes("query_tokens", query_tokens)
        _check_sizes("key_tokens", key_tokens)
        if key_tokens[-1] < query_tokens[-1]:
            raise ValueError(
                f"chunks of {query_tokens[-1]} queries have as many keys at least, but key_tokens "
                f"end at {key_tokens[-1]}"
            )
        table = [
            [achieved(queries, keys) if keys >= queries else math.nan for keys in key_tokens]
            for queries in query_tokens
        ]
        known = [number for row in table for number in row if not math.isnan(number)]
        for i, row in enumerate(table):
            for j in reversed(range(len(row))):
                if key_tokens[j] < query_tokens[i]:
                    above = table[i - 1] if i > 0 else row
                    ratio = above[j] / above[j + 1] if i > 0 else 1.0
                    row[j] = min(max(row[j + 1] * ratio, min(known)), max(known))
        return cls(
            query_tokens=tuple(query_tokens),
            key_tokens=tuple(key_tokens),
            achieved=tuple(tuple(row) for row in table),
        )

    @property
    def relative(self) -> np.ndarray:
        """Throughput over the largest, float64 (queries, keys), contiguous, in (0, 1]."""
        achieved = np.array(self.achieved, dtype=np.float64)
        return achieved / achieved.max()

    def table(self) -> np.ndarray:
        """`relative` with key_tokens above and query_tokens before it, as the kernels take it.

        float64 (1 + queries, 1 + keys); the corner is 0.
        """
        table = np.zeros((1 + len(self.query_tokens), 1 + len(self.key_tokens)))
        table[0, 1:], table[1:, 0] = self.key_tokens, self.query_tokens
        table[1:, 1:] = self.relative
        return table

    def as_dict(self) -> dict[str, Any]:
        """The inverse of `parse`."""
        return {
            "query_tokens": list(self.query_tokens),
            "key_tokens": list(self.key_tokens),
            "achieved": [list(row) for row in self.achieved],
        }


def _is_list(value: object) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def _numbers(name: str, value: Any) -> list[int | float]:
    if not _is_list(value):
        raise ValueError(f"throughput.{name} holds {value!r} in the place of a list of numbers")
    for number in value:
        if isinstance(number, bool) or not isinstance(number, int | float):
            raise ValueError(f"throughput.{name} holds {number!r}; it must hold numbers")
        if isinstance(number, int) and number.bit_length() > 1000:
            raise ValueError(f"throughput.{name} holds an integer beyond what a float can be")
    return list(value)


def _integers(name: str, value: Any) -> tuple[int, ...]:
    numbers = _numbers(name, value)
    for number in numbers:
        if not (math.isfinite(number) and number == int(number)):
            raise ValueError(f"throughput.{name} holds {number}; tokens must be whole numbers")
    return tuple(int(number) for number in numbers)


def _check_sizes(name: str, sizes: Sequence[int]) -> None:
    if not 1 <= len(sizes) <= MOST_SIZES:
        raise ValueError(
            f"throughput.{name} has {len(sizes)} numbers; it must have 1 to {MOST_SIZES}"
        )
    before = 0
    for size in sizes:
        if size <= before:
            raise ValueError(
                f"throughput.{name} must be positive and strictly increase, but {size} follows "
                f"{before}"
            )
        before = size
    if sizes[-1] > MOST_TOKENS:
        raise ValueError(f"throughput.{name} goes up to {sizes[-1]} tokens; at most {MOST_TOKENS}")


FLAT = Throughput(query_tokens=(1,), key_tokens=(1,), achieved=((1.0,),))
"""All shapes run alike: time is area."""

FLASH_ATTENTION_3 = {512: 292, 1024: 423, 2048: 521, 4096: 579, 8192: 602, 16_384: 616}
"""Sequence length to TFLOP/s: FlashAttention-3 (arXiv 2407.08608), Figure 5 (d), the labels of its
bars as others transcribed them: forward, causal, head dimension 128, bf16, H100 SXM5, 16 heads, 16k
tokens in all.

Half the square of the length is counted as pairs there (section 4.1); computed are, of n query
tiles, n (n + 1) / 2 tiles, 1 + 1 / n times as many.
"""


def _published() -> Throughput:
    """A grid for causal attention from `FLASH_ATTENTION_3`.

    Published are whole pieces alone. What is carried over to chunks, and why:

    - Time a query tile is taken to depend on its mean number of keys alone: a loop over keys,
      before and after it something that each tile pays once. The figure bears that out: with the
      causal mask, (d), and without, (c), where all tiles see all keys, that time is a straight line
      over mean keys within 3.1%, and what a tile pays once is worth 237 and 209 keys.
    - Between the published points that time is a straight line, before them the line of the first
      two goes on: chunks of which a tile sees fewer than 320 keys are an assumption.
    - Beyond them throughput stays at the last one's, that of 16k tokens.
    - The step between 128 and 256 queries in WLB-LLM's Figure 10 (arXiv 2503.17924), from keys that
      blocks load together, is left out: it is a plot without numbers, and FlashAttention-3 does
      not load together under a causal mask or with variable lengths
      (its hopper/flash_fwd_launch_template.h).
    """
    # points of (mean keys of a query tile, padded area over TFLOP/s of one tile)
    mean_keys = [(length + TILE) / 2 for length in FLASH_ATTENTION_3]
    speed = [flops * (1 + TILE / length) for length, flops in FLASH_ATTENTION_3.items()]
    time = [keys / flops for keys, flops in zip(mean_keys, speed, strict=True)]

    def achieved(queries: int, keys: int) -> float:
        mean = keys - (queries - TILE) / 2  # both are multiples of a tile
        if mean >= mean_keys[-1]:
            return float(round(speed[-1]))
        i = max(0, sum(point <= mean for point in mean_keys) - 1)
        slope = (time[i + 1] - time[i]) / (mean_keys[i + 1] - mean_keys[i])
        return float(round(mean / (time[i] + (mean - mean_keys[i]) * slope)))

    sizes = [TILE << k for k in range(8)]
    return Throughput.from_chunks(sizes, sizes, achieved)


PUBLISHED = _published()
"""The default: TFLOP/s of padded area, 128 to 16,384 tokens (`_published` has its sources)."""
