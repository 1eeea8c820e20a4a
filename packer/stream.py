"""The stream: every selected piece of every source, shuffled and mixed, from lengths alone.

What a pass over a source is made of, and its order, is `CutSource`'s; which source comes next is
`Mixer`'s.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from packer.cut_source import CutSource
from packer.mixture import TARGET_REACHED, Mixer, integer_weights
from packer.plan import Int64, Pieces
from packer.source_lengths import SourceLengths
from packer.source_reader import SourceReader, documents_in
from packer.workload import LONGEST_PIECE

LARGEST_QUEUE = 1 << 16
SMALLEST_QUEUE = 1 << 10
"""Pieces of a source that are cut ahead; decides nothing but speed and memory."""
_ENDLESS = 1 << 62


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Selection:
    """What a stream took of each source, all arrays int64 of shape (sources,).

    Every pass but a source's last is whole, so that one alone has something unselected: with what
    it has selected and the source's `SetAside`, that is all documents and tokens of the source. A
    document counts as unselected when none of its pieces is selected.
    """

    passes: Int64
    """Passes begun, and the first of every source."""
    last_epoch: Int64
    """Of the last of them; `passes` - 1 where no segment came before."""
    pieces: Int64
    """Over all passes, as are `tokens`."""
    tokens: Int64
    unselected_documents: Int64
    """In the last pass, as are the next two."""
    unselected_pieces: Int64
    unselected_tokens: Int64
    behind_tokens: Int64
    """The furthest that a source ever was behind its quota, rounded up."""
    ahead_tokens: Int64


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
        ValueError: a bad argument, a document without tokens, or a source of which no document is
            taken.
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
        self.context_length = context_length
        self.stop_at_source_end = at_source_end == "stop"
        self.target_tokens = _ENDLESS if target_tokens is None else target_tokens
        self.sources = tuple(
            CutSource(source, number=number, seed=seed, context_length=context_length)
            for number, source in enumerate(sources)
        )
        self.weights = integer_weights(
            [
                _first_tokens(cut) if source.weight is None else source.weight
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


def _first_tokens(cut: CutSource) -> int:
    first = cut.pass_at(0)
    return cut.tokens if first is None else first.tokens


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
        self._readers = [SourceReader(source) for source in stream.sources]
        self._read = np.zeros(num_sources, dtype=np.int64)
        self._number = np.array([source.number for source in stream.sources], dtype=np.int64)

    def __next__(self) -> Pieces:
        pieces = np.empty((6, self._num_pieces), dtype=np.int64)
        position = int(self._mixer.emitted_tokens.sum())
        picked = np.empty(self._num_pieces, dtype=np.int64)
        filled = 0
        while filled < self._num_pieces and not self._ended:
            count, reason = self._mixer.pick(self._tokens, self._head, self._tail, picked[filled:])
            slots = picked[filled : filled + count]
            pieces[0, filled : filled + count] = self._number[slots // self._queue_slots]
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
        count = self._readers[source].read(queue)
        self._tokens[first : first + count] = queue[3, :count] - queue[2, :count]
        self._head[source], self._tail[source] = first, first + count
        self._read[source] += count
        return count

    def selection(self) -> Selection:
        """What has been emitted so far; of the whole stream once the run is exhausted."""
        emitted_pieces = self._read - (self._tail - self._head)
        rows: list[tuple[int, ...]] = []
        for number, source in enumerate(self._stream.sources):
            pieces = int(emitted_pieces[number])
            tokens = int(self._mixer.emitted_tokens[number])
            passes, in_last, whole_tokens = source.pass_after(pieces)
            last = source.pass_at(passes - 1)
            assert last is not None
            rows.append(
                (
                    passes,
                    last.epoch,
                    pieces,
                    tokens,
                    last.documents - documents_in(source, passes - 1, in_last),
                    last.pieces - in_last,
                    whole_tokens - tokens,
                )
            )
        columns = np.array(rows, dtype=np.int64).T.copy()  # (7, sources)
        behind, ahead = self._mixer.deviation()
        return Selection(
            passes=columns[0],
            last_epoch=columns[1],
            pieces=columns[2],
            tokens=columns[3],
            unselected_documents=columns[4],
            unselected_pieces=columns[5],
            unselected_tokens=columns[6],
            behind_tokens=behind,
            ahead_tokens=ahead,
        )
