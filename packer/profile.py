"""Measured times of pieces, in the place of a formula.

A profile is two tables, piece length to time: one of attention, one of all the rest, and the time
of a micro-batch whatever is in it. The file and the meaning of every field are on the page
docs/WORKLOAD.md. Times may be in any one unit; only their ratios matter. A third table, of what
attention achieves on parts of pieces (`packer.throughput`), is for plans of context parallelism;
whole pieces do not need it.

Between two points:

- the rest goes linearly, from (0, 0) on;
- attention's time *a token* goes linearly, so that a quadratic, a linear and every a d + b d^2 are
  met exactly; where time a token falls (launch-bound lengths), the time itself goes linearly, so
  that it never falls. Before the first point attention is quadratic.

Beyond the last point the last two go on alike. All of it is float64 with + - * / in a stated order,
rounded once to an integer, so it is the same on every machine.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from packer.throughput import Throughput

FORMAT, VERSION = "steelyard-profile", 1
MOST_TOKENS = 1 << 26
"""Longest piece that a point may stand for, and that is asked for."""
MOST_WORK = 1 << 61
"""Workload of the longest piece must stay below; integers are 64 bits wide."""
MOST_POINTS = 4096
"""Of a table, so that a manifest stays small."""
_FIELDS = {"format", "version", "about", "linear", "attention", "throughput", "constant"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Times of pieces by their length, both strictly increasing."""

    tokens: tuple[int, ...]
    time: tuple[float, ...]

    @classmethod
    def parse(cls, value: object, name: str) -> Table:
        """A table from its JSON object, checked.

        Raises:
            ValueError: what is wrong, with the table's name.
        """
        if not isinstance(value, Mapping) or set(value) != {"tokens", "time"}:
            raise ValueError(f'{name} must be an object with the lists "tokens" and "time"')
        tokens, time = value["tokens"], value["time"]
        if not isinstance(tokens, Sequence) or not isinstance(time, Sequence):
            raise ValueError(f"{name}: tokens and time must be lists of numbers")
        if len(tokens) != len(time) or not 2 <= len(tokens) <= MOST_POINTS:
            raise ValueError(
                f"{name} has {len(tokens)} lengths and {len(time)} times; it needs as many of "
                f"both, 2 to {MOST_POINTS}"
            )
        for number in (*tokens, *time):
            if isinstance(number, bool) or not isinstance(number, int | float):
                raise ValueError(f"{name} holds {number!r}; it must hold numbers")
            if isinstance(number, int) and abs(number) >= MOST_WORK:
                raise ValueError(f"{name} holds a number beyond 2^61; give times in a larger unit")
        if any(count != int(count) for count in tokens):
            raise ValueError(f"{name}: tokens must be whole numbers")
        counts, times = [int(count) for count in tokens], [float(number) for number in time]
        for what, numbers in (("tokens", counts), ("time", times)):
            before = 0.0
            for number in numbers:
                if not before < number < math.inf:
                    raise ValueError(
                        f"{name}.{what} must be positive and strictly increase, but {number} "
                        f"follows {before}; leave out points that are noise"
                    )
                before = number
        if counts[-1] > MOST_TOKENS:
            raise ValueError(f"{name} has a piece of {counts[-1]} tokens; at most {MOST_TOKENS}")
        return cls(tokens=tuple(counts), time=tuple(times))

    def as_dict(self) -> dict[str, list[int] | list[float]]:
        return {"tokens": list(self.tokens), "time": list(self.time)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """What pieces took.

    The unit of work, a linear-token equivalent, is the last time of `linear` over its tokens.
    `throughput` is None where it was not measured.
    """

    linear: Table
    attention: Table
    throughput: Throughput | None = None

    def __post_init__(self) -> None:
        longest = float(self.time_of(np.array([MOST_TOKENS]))[0]) / self.unit
        if not longest * 256 < MOST_WORK:
            raise ValueError(
                f"a piece of {MOST_TOKENS} tokens would take the time of {longest:.3g} tokens' "
                "linear part; times of attention and linear are not in one unit"
            )

    @property
    def unit(self) -> float:
        """Time of one linear-token equivalent."""
        return self.linear.time[-1] / self.linear.tokens[-1]

    def work_of(self, tokens: np.ndarray, *, scale: int) -> np.ndarray:
        """Workload of pieces, int64, in 1/scale of a linear-token equivalent.

        Args:
            tokens: of each piece, int64, any shape.
            scale: integer work of one linear-token equivalent.
        """
        return _rounded(self.time_of(tokens), self.unit, scale)

    def attention_work_of(self, tokens: np.ndarray, *, scale: int) -> np.ndarray:
        """The part of it that is attention; arguments as in `work_of`."""
        return _rounded(self.attention_time(tokens), self.unit, scale)

    def constant_work(self, time: float, *, scale: int) -> int:
        """Any time as integer work."""
        return int(_rounded(np.array([time]), self.unit, scale)[0])

    def time_of(self, tokens: np.ndarray) -> np.ndarray:
        """Time of pieces, float64, same shape."""
        return self.linear_time(tokens) + self.attention_time(tokens)

    def linear_time(self, tokens: np.ndarray) -> np.ndarray:
        """Time of pieces' linear part, float64, same shape."""
        d = np.asarray(tokens, dtype=np.float64)
        at = np.array([0, *self.linear.tokens], dtype=np.float64)
        time = np.array([0, *self.linear.time], dtype=np.float64)
        i = np.clip(np.searchsorted(at, d, side="left") - 1, 0, len(at) - 2)
        return _straight(d, at[i], at[i + 1], time[i], time[i + 1])

    def attention_time(self, tokens: np.ndarray) -> np.ndarray:
        """Time of pieces' attention, float64, same shape."""
        d = np.asarray(tokens, dtype=np.float64)
        at = np.array(self.attention.tokens, dtype=np.float64)
        time = np.array(self.attention.time, dtype=np.float64)
        a_token = time / at
        i = np.clip(np.searchsorted(at, d, side="left") - 1, 0, len(at) - 2)
        straight = _straight(d, at[i], at[i + 1], time[i], time[i + 1])
        curved = d * _straight(d, at[i], at[i + 1], a_token[i], a_token[i + 1])
        later = np.where(a_token[i + 1] >= a_token[i], curved, straight)
        return np.where(d <= at[0], time[0] * (d * d) / (at[0] * at[0]), later)

    def tables(self) -> dict[str, Any]:
        """The tables in JSON types, as a set's manifest holds them."""
        tables = {"linear": self.linear.as_dict(), "attention": self.attention.as_dict()}
        if self.throughput is not None:
            tables["throughput"] = self.throughput.as_dict()
        return tables

    @classmethod
    def from_tables(cls, fields: Mapping[str, Any]) -> Profile:
        """The inverse of `tables`; other fields are left aside.

        Raises:
            ValueError: a table is missing or wrong.
        """
        has_grid = "throughput" in fields
        return cls(
            linear=Table.parse(fields.get("linear"), "linear"),
            attention=Table.parse(fields.get("attention"), "attention"),
            throughput=Throughput.parse(fields["throughput"]) if has_grid else None,
        )


def parse_profile(document: object) -> tuple[Profile, float]:
    """A profile and its micro-batch's constant time, from the JSON of a profile file.

    Raises:
        ValueError: not a profile, of another version, or with tables that make no sense.
    """
    if not isinstance(document, Mapping) or document.get("format") != FORMAT:
        raise ValueError(f'not a profile: "format" must be "{FORMAT}"')
    version = document.get("version")
    if version != VERSION or isinstance(version, bool):
        raise ValueError(f"version is {version!r}; this program reads version {VERSION}")
    if unknown := sorted(set(document) - _FIELDS):
        raise ValueError(f"unknown fields {unknown}; known are {sorted(_FIELDS)}")
    constant = document.get("constant", 0)
    is_number = isinstance(constant, int | float) and not isinstance(constant, bool)
    if not is_number or not 0 <= constant < math.inf:
        raise ValueError(f"constant is {constant!r}; it must be a time, 0 or more")
    return Profile.from_tables(document), float(constant)


def _straight(
    d: np.ndarray, left: np.ndarray, right: np.ndarray, low: np.ndarray, high: np.ndarray
) -> np.ndarray:
    """The line through (left, low) and (right, high) at d."""
    return low + (high - low) * (d - left) / (right - left)


def _rounded(time: np.ndarray, unit: float, scale: int) -> np.ndarray:
    return np.floor(time / unit * scale + 0.5).astype(np.int64)
