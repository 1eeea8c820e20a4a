"""A source as numbered pieces, and how passes over it are read, from lengths alone.

What of a document a pass takes, by its tokens: nothing if they are fewer than `min_tokens`; all of
it, cut into S, S, ..., rest, if they are more than S, the context length, and the policy is "cut";
its first S tokens if it is "truncate"; nothing if it is "drop". What is not taken is counted.

Within a pass the shuffle permutes pieces, not documents, so that one giant book does not fill a
step: of D documents and E extra pieces, number p < D is the first piece of document p, and D + e is
the extra piece e, found in a table of the documents that are cut. Numbers of documents that are
not taken are skipped.

Example: S = 4, documents of 3, 9 and 2 tokens make D = 3 and E = 2:

    number      0     1     2     3     4
    document    0     1     2     1     1
    tokens    [0,3) [0,4) [0,2) [4,8) [8,9)

`max_epochs` may have a fraction. Then the last pass ends before the first piece with which it would
have more than floor(fraction x tokens of a whole pass), the fraction being exactly the decimal that
is written: a prefix of the pass's shuffled pieces, less than one piece short of it. A document that
is cut may thus be in that pass in part.

Memory: buffers of one chunk, and the table. Lengths may be a map of a file and are only indexed.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from packer.permutation import permute, stream_key
from packer.plan import Int64

SCAN_DOCUMENTS = 1 << 20
"""Documents looked at together when a source's lengths are read through."""
LONG_POLICIES = ("cut", "truncate", "drop")
"""What may become of documents longer than the context length."""
_SCAN_PIECES = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SourceLengths:
    """One source as the stream sees it.

    Args:
        lengths: tokens of each document, any integer type, shape (documents,); may be a read-only
            map of a file.
        weight: its share of the stream's tokens, in any unit; None for the tokens of one pass.
        max_epochs: how many passes over it the stream may take; see the module for a fraction.
        min_tokens: shorter documents are not taken.
        longer_than_context: one of `LONG_POLICIES`.
        name: what messages call it; its number where not given.
    """

    lengths: np.ndarray
    weight: float | None = None
    max_epochs: float = 1
    min_tokens: int = 1
    longer_than_context: str = "cut"
    name: str | None = None

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


@dataclass(frozen=True, slots=True, kw_only=True)
class SetAside:
    """What one pass does not take of a source, by reason: documents, and their tokens.

    Of truncated documents, `truncated_tokens` are those after the first S.
    """

    too_short_documents: int
    too_short_tokens: int
    too_long_documents: int
    too_long_tokens: int
    truncated_documents: int
    truncated_tokens: int


class CutSource:
    """A source cut into pieces, each found by its number.

    Attributes:
        documents, tokens, pieces: that one pass takes.
        set_aside: what it does not take; with `tokens`, all tokens of the source.
        long_documents: those that are cut, ascending, int64.
        whole_epochs: whole passes allowed.
        last_tokens: tokens that the pass after them may take, 0 for no such pass.

    Raises:
        ValueError: a document without tokens, or no document that is taken.
    """

    def __init__(
        self, source: SourceLengths, *, number: int, seed: int, context_length: int
    ) -> None:
        self._lengths = np.asarray(source.lengths)  # a map stays one, as a plain array
        self._number = number
        self._seed = seed
        self._context_length = context_length
        self._source = source
        self._scan()
        tokens = self._lengths[self.long_documents].astype(np.int64)
        self._extra_stop = np.cumsum((tokens - 1) // context_length)
        extra = int(self._extra_stop[-1]) if len(tokens) else 0
        self.pieces = self.documents + extra
        self.numbers = len(self._lengths) + extra
        """Numbers of a pass, those that are skipped included."""
        epochs = Fraction(str(source.max_epochs))
        self.whole_epochs = int(epochs)
        self.last_tokens = int((epochs - self.whole_epochs) * self.tokens)

    @property
    def _name(self) -> str:
        return str(self._number) if self._source.name is None else repr(self._source.name)

    def _scan(self) -> None:
        """Read through all lengths once: count, and list the documents to cut."""
        policy = self._source.longer_than_context
        self.tokens = 0
        aside = np.zeros((3, 2), np.int64)  # too short, too long, truncated: documents, tokens
        found: list[Int64] = []
        for first in range(0, len(self._lengths), SCAN_DOCUMENTS):
            tokens = self._lengths[first : first + SCAN_DOCUMENTS].astype(np.int64)
            shortest = int(tokens.argmin())
            if tokens[shortest] < 1:
                raise ValueError(
                    f"document {first + shortest} of source {self._name} has "
                    f"{tokens[shortest]} tokens; every document needs at least 1, reject empty "
                    "ones before the stream"
                )
            short = tokens[tokens < self._source.min_tokens]
            at = np.flatnonzero(tokens > max(self._context_length, self._source.min_tokens - 1))
            long = tokens[at]
            self.tokens += int(tokens.sum())
            aside[0] += (len(short), short.sum())
            if policy == "cut":
                found.append(at + first)
            elif policy == "drop":
                aside[1] += (len(long), long.sum())
            else:
                aside[2] += (len(long), (long - self._context_length).sum())
        self._count(aside.tolist())
        self.long_documents = np.concatenate([np.empty(0, np.int64), *found])

    def _count(self, aside: list[list[int]]) -> None:
        """Take what is set aside off the source's documents and tokens."""
        short, long, truncated = aside
        self.set_aside = SetAside(
            too_short_documents=short[0],
            too_short_tokens=short[1],
            too_long_documents=long[0],
            too_long_tokens=long[1],
            truncated_documents=truncated[0],
            truncated_tokens=truncated[1],
        )
        self.documents = len(self._lengths) - short[0] - long[0]
        self.tokens -= short[1] + long[1] + truncated[1]
        if not self.documents:
            raise ValueError(
                f"no document of source {self._name} is left: of {len(self._lengths)}, {short[0]} "
                f"have fewer than min_tokens {self._source.min_tokens} tokens and {long[0]} more "
                f"than context_length {self._context_length}; lower min_tokens, or cut or "
                "truncate long documents"
            )

    def documents_in(self, epoch: int, pieces: int) -> int:
        """How many documents have one of the first `pieces` pieces of a pass."""
        if pieces == self.pieces or not len(self.long_documents):
            return min(pieces, self.documents)
        seen = np.zeros(len(self.long_documents), np.bool_)
        queue = np.empty((5, _SCAN_PIECES), np.int64)
        done = uncut = 0
        reader = SourceReader(self, epoch=epoch)
        while done < pieces:
            count = min(reader.read(queue), pieces - done)
            doc_id, tokens = queue[1, :count], queue[4, :count]
            cut = tokens > self._context_length
            uncut += count - int(cut.sum())
            seen[np.searchsorted(self.long_documents, doc_id[cut])] = True
            done += count
        return uncut + int(seen.sum())

    def cut(self, epoch: int, first: int, pieces: np.ndarray) -> int:
        """Find the pieces of consecutive places of a pass; those not taken are skipped.

        Args:
            epoch: which pass.
            first: the first place.
            pieces: int64 (4, places), receives doc_id, doc_start, doc_stop, doc_tokens; the last
                is what is taken of the document.

        Returns:
            How many were taken; they stand first.
        """
        order = np.arange(first, first + pieces.shape[1], dtype=np.int64)
        key = stream_key(self._seed, self._number, epoch)
        number = permute(order, size=self.numbers, key=key)
        doc_id, doc_start, doc_stop, doc_tokens = pieces
        doc_id[:] = number
        doc_start[:] = 0
        if len(self.long_documents):
            at = np.flatnonzero(number >= len(self._lengths))
            extra = number[at] - len(self._lengths)
            long = np.searchsorted(self._extra_stop, extra, side="right")
            doc_id[at] = self.long_documents[long]
            before = np.where(long > 0, self._extra_stop[long - 1], 0)
            doc_start[at] = (extra - before + 1) * self._context_length
        doc_tokens[:] = self._lengths[doc_id]
        taken = self._skip(pieces)
        if self.set_aside.truncated_documents:
            np.minimum(doc_tokens, self._context_length, out=doc_tokens)
        np.minimum(doc_start + self._context_length, doc_tokens, out=doc_stop)
        return taken

    def _skip(self, pieces: np.ndarray) -> int:
        """Move the pieces of documents that are taken to the front; how many they are."""
        if self.documents == len(self._lengths):
            return pieces.shape[1]
        tokens = pieces[3]
        keep = tokens >= self._source.min_tokens
        if self.set_aside.too_long_documents:
            keep &= tokens <= self._context_length
        at = np.flatnonzero(keep)
        for row in (0, 1, 3):
            pieces[row, : len(at)] = pieces[row, at]
        return len(at)


class SourceReader:
    """Reads a source's passes piece by piece, from the start of one of them.

    Args:
        source: what to read.
        epoch: the pass to start with.
    """

    def __init__(self, source: CutSource, *, epoch: int = 0) -> None:
        self._source = source
        self._epoch = epoch
        self._place = 0
        self._last_tokens = source.last_tokens

    def read(self, queue: np.ndarray) -> int:
        """Fill a queue with shuffled pieces, as far as looking at so many places fills it.

        Args:
            queue: int64 (5, slots), receives epoch, doc_id, doc_start, doc_stop, doc_tokens.

        Returns:
            How many pieces there were, 0 when no pass is left.
        """
        filled, places = 0, queue.shape[1]
        while (places or not filled) and self._has_more():
            count = min(places or queue.shape[1], self._source.numbers - self._place)
            pieces = queue[:, filled : filled + count]
            pieces[0] = self._epoch
            taken = self._source.cut(self._epoch, self._place, pieces[1:])
            self._place += count
            places = max(0, places - count)
            filled += self._limit(pieces[:, :taken])
            if self._place == self._source.numbers:
                self._epoch, self._place = self._epoch + 1, 0
        return filled

    def _has_more(self) -> bool:
        whole = self._source.whole_epochs
        return self._epoch < whole or (self._epoch == whole and self._last_tokens > 0)

    def _limit(self, pieces: np.ndarray) -> int:
        """How many of the next pieces the pass may take: all, unless it is a fraction of one."""
        if self._epoch < self._source.whole_epochs:
            return pieces.shape[1]
        total = np.cumsum(pieces[3] - pieces[2])
        count = int(np.searchsorted(total, self._last_tokens, side="right"))
        if count < pieces.shape[1]:
            self._last_tokens = 0  # the next piece would exceed it
        elif count:
            self._last_tokens -= int(total[-1])
        return count
