"""What a piece costs.

Under a causal mask inside each piece, the work of d tokens has a part that grows with d (matrix
products, element-wise work, communication) and one that grows with the query-key pairs of
attention. In linear-token equivalents, the cost of one token's linear part,

    W(d) = d + sum over kinds of layers of a(d) / L

where L is the kind's crossover and a(d) twice its pairs:

- layers that see the whole piece: d^2. Alone, as in most models, they give W(d) = d + d^2 / L, and
  L is the length at which attention costs as much as all the rest (WLB-LLM, arXiv 2503.17924,
  equation 2);
- a sliding window of w tokens: d^2 up to w tokens, from there 2 w d - w^2;
- chunks of c tokens that see nothing of one another: c^2 each, r^2 for the rest of r tokens.

Linear attention and state-space layers have linear work alone. `packer.shapes` reads all this off a
model's `config.json`, `packer.hardware` turns FLOPs into time, and a measured `Profile` stands in
the place of both. Planners need integers to be the same everywhere, so W is kept in 1/256 of a
unit; each kind of layer, or the profile, is rounded once a piece.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from packer.profile import Profile

SCALE = 256
"""Integer workload of one linear-token equivalent."""
LONGEST_PIECE = 1 << 26
"""Tokens of the longest piece whose workload is sure to fit int64 arithmetic."""
LARGEST_CROSSOVER = 1 << 40
"""Where attention is nothing at any length."""
MASKS = ("window", "chunk")
"""How a layer may see less than its whole piece."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Layers that see a part of their piece.

    Args:
        mask: "window", the last `tokens` tokens, or "chunk", those since the last multiple of
            `tokens`.
        tokens: of the window or chunk.
        crossover: the length at which attention of these layers would cost as much as the linear
            work of all layers, if they saw everything.
    """

    mask: str
    tokens: int
    crossover: int

    def __post_init__(self) -> None:
        if self.mask not in MASKS:
            raise ValueError(f"mask is {self.mask!r}; known are {', '.join(MASKS)}")
        if not 1 <= self.tokens <= LONGEST_PIECE:
            raise ValueError(
                f"a {self.mask} of {self.tokens} tokens; it must have 1 to {LONGEST_PIECE}"
            )
        _check_crossover(self.crossover)

    def double_pairs(self, length: np.ndarray) -> np.ndarray:
        """Twice the query-key pairs of pieces, int64, same shape."""
        if self.mask == "window":
            inside = np.minimum(length, self.tokens)
            return inside * (2 * length - inside)
        rest = length % self.tokens
        return (length - rest) * self.tokens + rest * rest


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What pieces and micro-batches cost.

    Args:
        crossover: L of the layers that see everything, in tokens; None where there are none.
        spans: the layers that see a part, a kind each.
        profile: measured times, which replace both; then `crossover` is None and `spans` empty.
        constant: what each micro-batch costs by itself, in 1/256 of a linear-token equivalent.

    Example:
        >>> Workload(crossover=1000).of(np.array([1000])).tolist()  # 1000 tokens count twice
        [512000]
        >>> half = Span(mask="window", tokens=10, crossover=1000)
        >>> Workload(crossover=1000, spans=(half,)).of(np.array([1000])).tolist()
        [517094]
    """

    crossover: int | None
    spans: tuple[Span, ...] = ()
    profile: Profile | None = None
    constant: int = 0

    def __post_init__(self) -> None:
        if self.profile is not None and (self.crossover is not None or self.spans):
            raise ValueError("a profile replaces crossover and spans; give it alone")
        if self.crossover is not None:
            _check_crossover(self.crossover)
        if not 0 <= self.constant < 1 << 53:
            raise ValueError(f"constant is {self.constant}; it must be 0 to 2^53 - 1")

    def __str__(self) -> str:
        if self.profile is not None:
            points = len(self.profile.attention.tokens)
            return (
                f"a profile of {points} points up to {self.profile.attention.tokens[-1]:,} tokens"
            )
        kinds = [] if self.crossover is None else [f"crossover {self.crossover:,} tokens"]
        kinds += [
            f"{span.crossover:,} of layers with a {span.mask} of {span.tokens:,}"
            for span in self.spans
        ]
        return "; ".join(kinds) or "by the token alone"

    def of(self, tokens: np.ndarray) -> np.ndarray:
        """The workload of pieces, int64, same shape.

        Args:
            tokens: length of each piece, integers.

        Raises:
            ValueError: a piece longer than `LONGEST_PIECE`.
        """
        length = _lengths(tokens)
        if self.profile is not None:
            return self.profile.work_of(length, scale=SCALE)
        return length * SCALE + self._attention(length)

    def attention_of(self, tokens: np.ndarray) -> np.ndarray:
        """The part of pieces' workload that is attention, int64, same shape.

        Args:
            tokens: length of each piece, integers.

        Raises:
            ValueError: a piece longer than `LONGEST_PIECE`.
        """
        length = _lengths(tokens)
        if self.profile is not None:
            return self.profile.attention_work_of(length, scale=SCALE)
        return self._attention(length)

    @property
    def is_quadratic(self) -> bool:
        """Whether W(d) = d + d^2 / L, for which `crossover` says everything."""
        return self.crossover is not None and not self.spans and self.profile is None

    def as_dict(self) -> dict[str, Any]:
        """The model in JSON types, as a set's manifest holds it (docs/FORMAT.md, section 6)."""
        ends = {"scale": SCALE, "constant": self.constant}
        if self.profile is not None:
            return {"model": "profile", **self.profile.tables(), **ends}
        if self.is_quadratic:
            return {"model": "quadratic", "crossover": self.crossover, **ends}
        spans = [asdict(span) for span in self.spans]
        return {"model": "layers", "crossover": self.crossover, "spans": spans, **ends}

    @classmethod
    def from_dict(cls, model: Mapping[str, Any]) -> Workload:
        """The inverse of `as_dict`.

        Raises:
            ValueError: a model that this version does not know, or fields of the wrong kind.
        """
        kind, scale = model.get("model"), model.get("scale")
        if kind not in ("quadratic", "layers", "profile") or scale != SCALE:
            raise ValueError(
                f"a workload model {kind!r} in 1/{scale} of a token; known are 'quadratic', "
                f"'layers' and 'profile' in 1/{SCALE}"
            )
        try:
            if kind == "profile":
                profile = Profile.from_tables(model)
                return cls(crossover=None, profile=profile, constant=int(model["constant"]))
            spans = model["spans"] if kind == "layers" else ()
            return cls(
                crossover=model["crossover"],
                spans=tuple(Span(**span) for span in spans),
                constant=int(model["constant"]),
            )
        except (KeyError, TypeError) as error:
            raise ValueError(
                f"a field of the workload model is missing or malformed: {error!r}"
            ) from None

    def _attention(self, length: np.ndarray) -> np.ndarray:
        work = np.zeros_like(length)
        if self.crossover is not None:
            work += _share(length * length, self.crossover)
        for span in self.spans:
            work += _share(span.double_pairs(length), span.crossover)
        return work


def _lengths(tokens: np.ndarray) -> np.ndarray:
    length = np.asarray(tokens, dtype=np.int64)
    if length.size and int(length.max()) > LONGEST_PIECE:
        raise ValueError(
            f"a piece of {int(length.max())} tokens; the longest allowed has {LONGEST_PIECE}"
        )
    return length


def _share(double_pairs: np.ndarray, crossover: int) -> np.ndarray:
    """A kind of layers' work, rounded to the nearest."""
    return (double_pairs * SCALE + crossover // 2) // crossover


def _check_crossover(crossover: int) -> None:
    if not isinstance(crossover, int) or not 1 <= crossover <= LARGEST_CROSSOVER:
        raise ValueError(
            f"crossover is {crossover}; it must be 1 to {LARGEST_CROSSOVER} tokens, or None where "
            "no layer sees everything"
        )
