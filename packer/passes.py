"""Passes over a source, and what earlier segments of a chain left of them.

A chain's segments share their sources: a segment takes what earlier ones have not run. Of an epoch
that they began, a document of which something has run is *begun*, whatever became of the rest; its
numbers are skipped, and what is left of it stands in a table of intervals, each cut into S, S, ...,
rest, numbered after everything else. Any other document is as in a fresh pass.

Example: S = 4, documents of 3, 9 and 2 tokens, of document 1 the tokens [4, 8) have run:

    number      0     1     2     3     4     5     6
    document    0     1     2     1     1     1     1
    tokens    [0,3)   -   [0,2)   -     -   [0,4) [8,9)

Memory: a bit a document, which may be a map of a file, and the table.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from packer.plan import Int64


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EarlierEpoch:
    """What earlier segments have run of one pass over a source, and what they left of it.

    Args:
        begun: a bit a document, the lowest of a byte first, uint8, (bytes,); set where something
            of the document has run.
        doc_id: the document of each interval that is left of a begun one, (intervals,), ascending.
        start: its first token, ascending within a document.
        stop: one past its last token.
        run_tokens: tokens of the pass that have run.
    """

    begun: np.ndarray
    doc_id: Int64
    start: Int64
    stop: Int64
    run_tokens: int

    def __post_init__(self) -> None:
        shapes = {array.shape for array in (self.doc_id, self.start, self.stop)}
        if len(shapes) > 1 or self.begun.dtype != np.uint8:
            raise ValueError(
                f"begun is {self.begun.dtype} and intervals have shapes {sorted(shapes)}; it must "
                "be uint8, and they of one shape"
            )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Remains:
    """What is left of the begun documents of a pass, cut into pieces, (pieces,) each."""

    begun: np.ndarray
    doc_id: Int64
    start: Int64
    stop: Int64

    @classmethod
    def of(cls, earlier: EarlierEpoch, *, context_length: int) -> Remains:
        """Each interval cut into S, S, ..., rest."""
        counts = -(-(earlier.stop - earlier.start) // context_length)
        first = np.repeat(np.cumsum(counts) - counts, counts)
        place = (np.arange(len(first), dtype=np.int64) - first) * context_length
        start = np.repeat(earlier.start, counts) + place
        stop = np.minimum(start + context_length, np.repeat(earlier.stop, counts))
        doc_id = np.repeat(earlier.doc_id, counts)
        return cls(begun=earlier.begun, doc_id=doc_id, start=start, stop=stop)

    def is_begun(self, doc_id: np.ndarray) -> np.ndarray:
        """Whether something of each document has run, (documents,)."""
        bits = self.begun[doc_id >> 3] >> (doc_id & 7).astype(np.uint8)
        return (bits & 1).astype(np.bool_)

    @property
    def documents(self) -> int:
        return len(np.unique(self.doc_id))

    @property
    def tokens(self) -> int:
        return int((self.stop - self.start).sum())


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SourcePass:
    """One pass over a source, or what is left of it.

    Attributes:
        epoch: which pass.
        documents, tokens, pieces: that it takes where nothing ends it early.
        numbers: of its pieces, those that are skipped included.
        most_tokens: that it may take; fewer than `tokens` where it is a part of an epoch.
        remains: of the documents that earlier segments began; None in a fresh pass.
    """

    epoch: int
    documents: int
    tokens: int
    pieces: int
    numbers: int
    most_tokens: int
    remains: Remains | None = None
