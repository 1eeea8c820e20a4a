"""The stream: every selected piece of every source, shuffled and mixed, from lengths alone.

Documents longer than S, the context length, are cut into S, S, ..., rest. Within a pass over a
source the shuffle permutes pieces, not documents, so that one giant book does not fill a step:
of D documents and E extra pieces, number p < D is the first piece of document p, and D + e is the
extra piece e, found in a table of the long documents only. Which source comes next is `Mixer`'s.

Example: S = 4, documents of 3, 9 and 2 tokens make D = 3 and E = 2:

    number      0     1     2     3     4
    document    0     1     2     1     1
    tokens    [0,3) [0,4) [0,2) [4,8) [8,9)

Memory: buffers of one chunk, and the table. Lengths may be a map of a file and are only indexed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from packer.mixture import TARGET_REACHED, Mixer, integer_weights
from packer.permutation import permute, stream_key
from packer.plan import Int64, Pieces
from packer.workload import LONGEST_PIECE

SCAN_DOCUMENTS = 1 << 20
"""Documents looked at together when a source's long ones are listed."""
LARGEST_QUEUE = 1 << 16
SMALLEST_QUEUE = 1 << 10
"""Pieces of a source that are cut ahead; decides nothing but speed and memory."""
_ENDLESS = 1 << 62


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SourceLengths:
    """One source as the stream sees it.

    Args:
        lengths: tokens of each document, any integer type, shape (documents,); may be a read-only
            map of a file.
        weight: its share of the stream's tokens, in any unit; None for its own tokens.
        max_epochs: how many passes over it the stream may take.
    """

    lengths: np.ndarray
    weight: float | None = None
    max_epochs: int = 1

    def __post_init__(self) -> None:
        if self.lengths.ndim != 1 or self.lengths.dtype.kind not in "iu" or not len(self.lengths):
            raise ValueError(
                f"lengths is {self.lengths.dtype}{list(self.lengths.shape)}; it must be integers "
                "of shape (documents,) with at least one document"
            )
        if self.weight is not None and not 0 < self.weight < float("inf"):
            raise ValueError(f"weight is {self.weight}; it must be positive and finite, or None")
        if self.max_epochs < 1:
            raise ValueError(f"max_epochs is {self.max_epochs}; it must be at least 1")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Selection:
    """What a stream took of each pass over each source, all arrays int64 of shape (passes,).

    Passes are those begun, and the first of every source. For each, `tokens` + `unselected_tokens`
    are the source's tokens.
    """

    source: Int64
    epoch: Int64
    pieces: Int64
    tokens: Int64
    unselected_tokens: Int64


class Stream:
    """A mixture of shuffled sources, replayable at will.

    Args:
        sources: at least one; all have a weight or none has.
        seed: of the shuffle, 0 .. 2^64 - 1.
        context_length: S, the longest piece, at most 2^26.
        target_tokens: the stream ends before the piece that would exceed this; None: no target.
        at_source_end: when it is the turn of a source that has no epochs left, "stop" ends the
            stream, so that the mixture holds to the end; "drop" takes the source out and shares
            its quota among the rest.

    Raises:
        ValueError: a bad argument, or a document without tokens.
    """

    def __init__(
        self,
        sources: Sequence[SourceLengths],
        *,
        seed: int,
        context_length: int,
        target_tokens: int | None = None,
        at_source_end: str = "drop",
    ) -> None:
        _check_stream(sources, seed, context_length, target_tokens, at_source_end)
        self.stop_at_source_end = at_source_end == "stop"
        self.target_tokens = _ENDLESS if target_tokens is None else target_tokens
        self.sources = tuple(
            CutSource(source, number=number, seed=seed, context_length=context_length)
            for number, source in enumerate(sources)
        )
        self.weights = integer_weights(
            [
                cut.tokens if source.weight is None else source.weight
                for source, cut in zip(sources, self.sources, strict=True)
            ]
        )

    def chunks(self, num_pieces: int = 1 << 17) -> StreamRun:
        """The stream from its start, `num_pieces` at a time; the last chunk may be shorter.

        The stream is the same whatever `num_pieces` is.

        Raises:
            ValueError: num_pieces < 1.
        """
        if num_pieces < 1:
            raise ValueError(f"num_pieces is {num_pieces}; a chunk holds at least 1")
        return StreamRun(self, num_pieces)


def _check_stream(
    sources: Sequence[SourceLengths],
    seed: int,
    context_length: int,
    target_tokens: int | None,
    at_source_end: str,
) -> None:
    if not sources:
        raise ValueError("a stream without sources; give at least one")
    if len({source.weight is None for source in sources}) > 1:
        raise ValueError("some sources have a weight and some have none; give all or none")
    if not 0 <= seed < 1 << 64:
        raise ValueError(f"seed is {seed}; it must be an unsigned 64-bit integer")
    if not 1 <= context_length <= LONGEST_PIECE:
        raise ValueError(f"context_length is {context_length}; it must be 1..{LONGEST_PIECE}")
    if len(sources) * context_length >= 1 << 33:  # weights sum to 2^30, deficits stay in int64
        raise ValueError(
            f"{len(sources)} sources at context_length {context_length}; their product must stay "
            f"below {1 << 33}, merge sources or shorten the context"
        )
    if target_tokens is not None and target_tokens < 1:
        raise ValueError(f"target_tokens is {target_tokens}; it must be at least 1, or None")
    if at_source_end not in ("stop", "drop"):
        raise ValueError(f'at_source_end is "{at_source_end}"; it must be "stop" or "drop"')


class CutSource:
    """A source cut into pieces, each found by its number.

    Attributes:
        documents, tokens, pieces: of one pass.
        cut_documents: documents longer than the context length.
        max_epochs: passes allowed.
    """

    def __init__(
        self, source: SourceLengths, *, number: int, seed: int, context_length: int
    ) -> None:
        self._lengths = np.asarray(source.lengths)  # a map stays one, as a plain array
        self._number = number
        self._seed = seed
        self._context_length = context_length
        self._list_long_documents()
        self.documents = len(self._lengths)
        self.cut_documents = len(self._long_documents)
        self.pieces = self.documents + (int(self._extra_stop[-1]) if self.cut_documents else 0)
        self.max_epochs = source.max_epochs

    def _list_long_documents(self) -> None:
        """Find the documents to cut, and `_extra_stop`: extra pieces up to and with each."""
        self.tokens = 0
        found: list[Int64] = []
        for first in range(0, len(self._lengths), SCAN_DOCUMENTS):
            tokens = self._lengths[first : first + SCAN_DOCUMENTS].astype(np.int64)
            shortest = int(tokens.argmin())
            if tokens[shortest] < 1:
                raise ValueError(
                    f"document {first + shortest} of source {self._number} has "
                    f"{tokens[shortest]} tokens; every document needs at least 1, reject empty "
                    "ones before the stream"
                )
            self.tokens += int(tokens.sum())
            found.append(np.flatnonzero(tokens > self._context_length) + first)
        self._long_documents = np.concatenate(found)
        tokens = self._lengths[self._long_documents].astype(np.int64)
        self._extra_stop = np.cumsum((tokens - 1) // self._context_length)

    def read(self, first: int, queue: np.ndarray) -> int:
        """Fill a queue with shuffled pieces, starting from number `first` of all passes.

        Args:
            first: pieces of this source before, over all passes.
            queue: int64 (5, slots), receives epoch, doc_id, doc_start, doc_stop, doc_tokens.

        Returns:
            How many pieces there were, 0 when no pass is left.
        """
        filled = 0
        while filled < queue.shape[1]:
            epoch, done = divmod(first + filled, self.pieces)
            if epoch == self.max_epochs:
                break
            count = min(queue.shape[1] - filled, self.pieces - done)
            key = stream_key(self._seed, self._number, epoch)
            order = np.arange(done, done + count, dtype=np.int64)
            queue[0, filled : filled + count] = epoch
            self._cut(permute(order, size=self.pieces, key=key), queue[1:, filled : filled + count])
            filled += count
        return filled

    def _cut(self, number: Int64, pieces: np.ndarray) -> None:
        """Write doc_id, doc_start, doc_stop, doc_tokens of numbered pieces, int64 (4, n)."""
        doc_id, doc_start, doc_stop, doc_tokens = pieces
        doc_id[:] = number
        doc_start[:] = 0
        if self.cut_documents:
            at = np.flatnonzero(number >= self.documents)
            extra = number[at] - self.documents
            long = np.searchsorted(self._extra_stop, extra, side="right")
            doc_id[at] = self._long_documents[long]
            before = np.where(long > 0, self._extra_stop[long - 1], 0)
            doc_start[at] = (extra - before + 1) * self._context_length
        doc_tokens[:] = self._lengths[doc_id]
        np.minimum(doc_start + self._context_length, doc_tokens, out=doc_stop)


class StreamRun(Iterator[Pieces]):
    """One pass over a stream, made by `Stream.chunks`.

    Each source has a queue of pieces cut ahead; `Mixer` picks from their heads until one is empty
    and its source cuts the next ones.
    """

    def __init__(self, stream: Stream, num_pieces: int) -> None:
        self._stream = stream
        self._num_pieces = num_pieces
        self._mixer = Mixer(stream.weights, target_tokens=stream.target_tokens)
        self._ended = False
        num_sources = len(stream.sources)
        share = max(SMALLEST_QUEUE, min(LARGEST_QUEUE, num_pieces // num_sources))
        self._queue_slots = share
        self._queues = np.empty((5, num_sources * share), dtype=np.int64)
        self._tokens = np.empty(num_sources * share, dtype=np.int64)
        self._head = np.arange(num_sources, dtype=np.int64) * share
        self._tail = self._head.copy()
        self._read = np.zeros(num_sources, dtype=np.int64)

    def __next__(self) -> Pieces:
        pieces = np.empty((6, self._num_pieces), dtype=np.int64)
        position = int(self._mixer.emitted_tokens.sum())
        picked = np.empty(self._num_pieces, dtype=np.int64)
        filled = 0
        while filled < self._num_pieces and not self._ended:
            count, reason = self._mixer.pick(self._tokens, self._head, self._tail, picked[filled:])
            slots = picked[filled : filled + count]
            pieces[0, filled : filled + count] = slots // self._queue_slots
            np.take(self._queues, slots, axis=1, out=pieces[1:, filled : filled + count])
            filled += count
            if reason == TARGET_REACHED:
                self._ended = True
            elif reason >= 0 and not self._refill(reason):
                self._ended = self._stream.stop_at_source_end or not self._mixer.drop(reason)
        if not filled:
            raise StopIteration
        source, epoch, doc_id, doc_start, doc_stop, doc_tokens = pieces[:, :filled]
        tokens = doc_stop - doc_start
        return Pieces(
            source=source,
            epoch=epoch,
            doc_id=doc_id,
            doc_start=doc_start,
            doc_stop=doc_stop,
            doc_tokens=doc_tokens,
            position=position + np.cumsum(tokens) - tokens,
        )

    def _refill(self, source: int) -> int:
        """Cut the next pieces of a source whose queue is empty; how many there were."""
        first = source * self._queue_slots
        queue = self._queues[:, first : first + self._queue_slots]
        count = self._stream.sources[source].read(int(self._read[source]), queue)
        self._tokens[first : first + count] = queue[3, :count] - queue[2, :count]
        self._head[source], self._tail[source] = first, first + count
        self._read[source] += count
        return count

    def selection(self) -> Selection:
        """What has been emitted so far; of the whole stream once the run is exhausted."""
        emitted_pieces = self._read - (self._tail - self._head)
        rows: list[tuple[int, int, int, int, int]] = []
        for number, source in enumerate(self._stream.sources):
            pieces = int(emitted_pieces[number])
            tokens = int(self._mixer.emitted_tokens[number])
            for epoch in range(max(1, -(-pieces // source.pieces))):
                whole = pieces >= (epoch + 1) * source.pieces
                took = source.tokens if whole else tokens - epoch * source.tokens
                count = source.pieces if whole else pieces - epoch * source.pieces
                rows.append((number, epoch, count, took, source.tokens - took))
        columns = np.array(rows, dtype=np.int64).T.copy()  # (5, passes)
        return Selection(
            source=columns[0],
            epoch=columns[1],
            pieces=columns[2],
            tokens=columns[3],
            unselected_tokens=columns[4],
        )
