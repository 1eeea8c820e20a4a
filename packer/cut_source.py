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

Where earlier segments of a chain have run some of the source, its first passes are what is left of
the epochs up to the last that they began, in ascending order; fresh ones follow (`packer.passes`).
`max_epochs` counts from the chain's start, and of a part of an epoch what has run is taken off.

Memory: buffers of one chunk, and the tables. Lengths may be a map of a file and are only indexed.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from packer.passes import EarlierEpoch, Remains, SourcePass
from packer.permutation import permute, stream_key
from packer.plan import Int64
from packer.source_lengths import SourceLengths

SCAN_DOCUMENTS = 1 << 20
"""Documents looked at together when a source's lengths are read through."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SetAside:
    """What a fresh pass does not take of a source, by reason: documents, and their tokens.

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
        number: of the source in the chain.
        documents, tokens, pieces: that a fresh pass takes.
        set_aside: what it does not take; with `tokens`, all tokens of the source.
        long_documents: those that are cut, ascending, int64.
        whole_epochs: whole passes allowed, from the chain's start.
        last_tokens: tokens that the pass after them may take, 0 for no such pass.

    Raises:
        ValueError: a document without tokens, no document that is taken, or no pass that is left.
    """

    def __init__(
        self, source: SourceLengths, *, number: int, seed: int, context_length: int
    ) -> None:
        self._lengths = np.asarray(source.lengths)  # a map stays one, as a plain array
        self.number = number if source.number is None else source.number
        self._seed = seed
        self._context_length = context_length
        self._source = source
        self._scan()
        tokens = self._lengths[self.long_documents].astype(np.int64)
        self._extra_stop = np.cumsum((tokens - 1) // context_length)
        extra = int(self._extra_stop[-1]) if len(tokens) else 0
        self.pieces = self.documents + extra
        self._numbers = len(self._lengths) + extra
        epochs = Fraction(str(source.max_epochs))
        self.whole_epochs = int(epochs)
        self.last_tokens = int((epochs - self.whole_epochs) * self.tokens)
        self._begun_passes = self._left()
        if self.pass_at(0) is None and source.earlier:
            raise ValueError(
                f"nothing of source {self._name} is left: earlier segments have run all that "
                f"max_epochs {source.max_epochs} allows; raise max_epochs, or take the source out"
            )

    @property
    def _name(self) -> str:
        return str(self.number) if self._source.name is None else repr(self._source.name)

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

    def _left(self) -> list[SourcePass]:
        """What is left of the epochs that earlier segments began, where something is."""
        passes = [
            self._left_of(epoch, earlier)
            for epoch, earlier in enumerate(self._source.earlier)
            if epoch <= self.whole_epochs
        ]
        return [left for left in passes if left.pieces and left.most_tokens > 0]

    def _left_of(self, epoch: int, earlier: EarlierEpoch) -> SourcePass:
        """What is left of an epoch: untouched documents as in a fresh pass, remains of others."""
        remains = Remains.of(earlier, context_length=self._context_length)
        documents, tokens, pieces = remains.documents, remains.tokens, len(remains.doc_id)
        for first in range(0, len(self._lengths), SCAN_DOCUMENTS):
            lengths = self._lengths[first : first + SCAN_DOCUMENTS].astype(np.int64)
            taken = self._taken(lengths)
            taken[remains.is_begun(np.arange(first, first + len(lengths)))] = 0
            documents += int(np.count_nonzero(taken))
            tokens += int(taken.sum())
            pieces += int((-(-taken // self._context_length)).sum())
        part = epoch == self.whole_epochs
        return SourcePass(
            epoch=epoch,
            documents=documents,
            tokens=tokens,
            pieces=pieces,
            numbers=self._numbers + len(remains.doc_id),
            most_tokens=min(tokens, self.last_tokens - earlier.run_tokens) if part else tokens,
            remains=remains,
        )

    def _taken(self, lengths: Int64) -> Int64:
        """Tokens that a fresh pass takes of documents of these lengths."""
        taken, long = lengths.copy(), lengths > self._context_length
        if self._source.longer_than_context == "truncate":
            taken[long] = self._context_length
        elif self._source.longer_than_context == "drop":
            taken[long] = 0
        taken[lengths < self._source.min_tokens] = 0
        return taken

    def pass_at(self, index: int) -> SourcePass | None:
        """The pass that the stream takes after `index` others; None where none is left."""
        if index < len(self._begun_passes):
            return self._begun_passes[index]
        epoch = len(self._source.earlier) + index - len(self._begun_passes)
        none_of_it = epoch == self.whole_epochs and epoch > 0 and not self.last_tokens
        if epoch > self.whole_epochs or none_of_it:
            return None
        return SourcePass(
            epoch=epoch,
            documents=self.documents,
            tokens=self.tokens,
            pieces=self.pieces,
            numbers=self._numbers,
            most_tokens=self.tokens if epoch < self.whole_epochs else self.last_tokens,
        )

    def pass_after(self, pieces: int) -> tuple[int, int, int]:
        """Where a stream is that has taken so many pieces of the source.

        Returns:
            The number of passes begun, at least 1; the pieces taken of the last of them; and the
            tokens that all of them have.
        """
        tokens = 0
        for index, left in enumerate(self._begun_passes):
            tokens += left.tokens
            if pieces <= left.pieces or self.pass_at(index + 1) is None:
                return index + 1, pieces, tokens
            pieces -= left.pieces
        fresh = max(1, -(-pieces // self.pieces))
        return (
            len(self._begun_passes) + fresh,
            pieces - (fresh - 1) * self.pieces,
            tokens + fresh * self.tokens,
        )

    def cut(self, source_pass: SourcePass, first: int, pieces: np.ndarray) -> int:
        """Find the pieces of consecutive places of a pass; those not taken are skipped.

        Args:
            source_pass: which pass.
            first: the first place.
            pieces: int64 (4, places), receives doc_id, doc_start, doc_stop, doc_tokens; the last
                is the document's length, or S where documents are truncated: what is behind is no
                label.

        Returns:
            How many were taken; they stand first.
        """
        order = np.arange(first, first + pieces.shape[1], dtype=np.int64)
        key = stream_key(self._seed, self.number, source_pass.epoch)
        number = permute(order, size=source_pass.numbers, key=key)
        remains = source_pass.remains
        if remains is None:
            keep = self._cut_own(number, pieces)
        else:
            left = np.flatnonzero(number >= self._numbers)  # entries of the table of remains
            entry = number[left] - self._numbers
            number[left] = 0
            keep = self._cut_own(number, pieces) & ~remains.is_begun(pieces[0])
            keep[left] = True
            doc_id = remains.doc_id[entry]
            columns = (doc_id, remains.start[entry], remains.stop[entry], self._lengths[doc_id])
            for row, column in zip(pieces, columns, strict=True):
                row[left] = column
        if self._source.longer_than_context == "truncate":
            np.minimum(pieces[3], self._context_length, out=pieces[3])
        if keep.all():
            return pieces.shape[1]
        at = np.flatnonzero(keep)
        for row in pieces:
            row[: len(at)] = row[at]
        return len(at)

    def _cut_own(self, number: Int64, pieces: np.ndarray) -> np.ndarray:
        """Pieces as a fresh pass has them, by number; which of them it takes."""
        doc_id, doc_start, doc_stop, doc_tokens = pieces
        self._find(number, doc_id, doc_start)
        doc_tokens[:] = self._lengths[doc_id]
        np.minimum(doc_start + self._context_length, doc_tokens, out=doc_stop)
        return self._is_taken(doc_tokens)

    def _find(self, number: Int64, doc_id: Int64, doc_start: Int64) -> None:
        """The documents of numbers, and where their pieces begin."""
        doc_id[:] = number
        doc_start[:] = 0
        if len(self.long_documents):
            at = np.flatnonzero(number >= len(self._lengths))
            extra = number[at] - len(self._lengths)
            long = np.searchsorted(self._extra_stop, extra, side="right")
            doc_id[at] = self.long_documents[long]
            before = np.where(long > 0, self._extra_stop[long - 1], 0)
            doc_start[at] = (extra - before + 1) * self._context_length

    def _is_taken(self, doc_tokens: Int64) -> np.ndarray:
        """Which documents of these lengths a fresh pass takes."""
        keep = doc_tokens >= self._source.min_tokens
        if self.set_aside.too_long_documents:
            keep &= doc_tokens <= self._context_length
        return keep
