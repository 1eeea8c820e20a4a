"""A source as the stream sees it: the lengths of its documents, and how it is to be read."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from packer.passes import EarlierEpoch

LONG_POLICIES = ("cut", "truncate", "drop")
"""What may become of documents longer than the context length."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SourceLengths:
    """One source as the stream sees it.

    Args:
        lengths: tokens of each document, any integer type, shape (documents,); may be a read-only
            map of a file.
        weight: its share of the stream's tokens, in any unit; None for the tokens of its first
            pass.
        max_epochs: how many passes over it the chain may take; see the module for a fraction.
        min_tokens: shorter documents are not taken.
        longer_than_context: one of `LONG_POLICIES`.
        name: what messages call it; its number where not given.
        number: which of the chain's sources it is; its place in the stream where not given.
        earlier: what earlier segments have run of epochs 0, 1, .., to the last that they began.
    """

    lengths: np.ndarray
    weight: float | None = None
    max_epochs: float = 1
    min_tokens: int = 1
    longer_than_context: str = "cut"
    name: str | None = None
    number: int | None = None
    earlier: tuple[EarlierEpoch, ...] = ()

    def __post_init__(self) -> None:
        if self.lengths.ndim != 1 or self.lengths.dtype.kind not in "iu" or not len(self.lengths):
            raise ValueError(
                f"lengths is {self.lengths.dtype}{list(self.lengths.shape)}; it must be integers "
                "of shape (documents,) with at least one document"
            )
        if self.weight is not None and not 0 < self.weight < float("inf"):
            raise ValueError(f"weight is {self.weight}; it must be positive and finite, or None")
        if not 0 < self.max_epochs < float("inf"):
            raise ValueError(f"max_epochs is {self.max_epochs}; it must be positive and finite")
        if self.min_tokens < 1:
            raise ValueError(f"min_tokens is {self.min_tokens}; it must be at least 1")
        if self.longer_than_context not in LONG_POLICIES:
            raise ValueError(
                f"longer_than_context is {self.longer_than_context!r}; it must be one of "
                f"{', '.join(LONG_POLICIES)}"
            )
