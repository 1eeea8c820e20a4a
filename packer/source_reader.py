"""Reading a source's passes, piece by piece in their shuffled order."""

from __future__ import annotations

import numpy as np

from packer.cut_source import CutSource
from packer.passes import SourcePass

_SCAN_PIECES = 1 << 16


class SourceReader:
    """Reads a source's passes piece by piece, from the start of one of them.

    Args:
        source: what to read.
        index: the pass to start with, counted as `CutSource.pass_at` does.
    """

    def __init__(self, source: CutSource, *, index: int = 0) -> None:
        self._source = source
        self._index = index
        self._begin()

    def _begin(self) -> None:
        self._pass = self._source.pass_at(self._index)
        self._place = 0
        self._most_tokens = 0 if self._pass is None else self._pass.most_tokens

    def read(self, queue: np.ndarray) -> int:
        """Fill a queue with shuffled pieces, as far as looking at so many places fills it.

        Args:
            queue: int64 (5, slots), receives epoch, doc_id, doc_start, doc_stop, doc_tokens.

        Returns:
            How many pieces there were, 0 when no pass is left.
        """
        filled, places = 0, queue.shape[1]
        while (places or not filled) and self._pass is not None:
            count = min(places or queue.shape[1], self._pass.numbers - self._place)
            pieces = queue[:, filled : filled + count]
            pieces[0] = self._pass.epoch
            taken = self._source.cut(self._pass, self._place, pieces[1:])
            self._place += count
            places = max(0, places - count)
            kept = self._limit(self._pass, pieces[:, :taken])
            filled += kept
            if kept < taken or self._place == self._pass.numbers:
                self._index += 1
                self._begin()
        return filled

    def _limit(self, source_pass: SourcePass, pieces: np.ndarray) -> int:
        """How many of the next pieces the pass may take: all, unless it is a part of an epoch."""
        if source_pass.most_tokens == source_pass.tokens:
            return pieces.shape[1]
        total = np.cumsum(pieces[3] - pieces[2])
        count = int(np.searchsorted(total, self._most_tokens, side="right"))
        if count:
            self._most_tokens -= int(total[count - 1])
        return count


def documents_in(source: CutSource, index: int, pieces: int) -> int:
    """How many documents have one of the first `pieces` pieces of pass number `index`."""
    source_pass = source.pass_at(index)
    assert source_pass is not None
    remains = source_pass.remains
    if pieces == source_pass.pieces or not (len(source.long_documents) or remains):
        return min(pieces, source_pass.documents)
    several = source.long_documents  # that may have more pieces than one, ascending
    if remains is not None:
        several = np.union1d(several, remains.doc_id)
    seen = np.zeros(len(several), np.bool_)
    queue = np.empty((5, _SCAN_PIECES), np.int64)
    done = single = 0
    reader = SourceReader(source, index=index)
    while done < pieces:
        count = min(reader.read(queue), pieces - done)
        doc_id = queue[1, :count]
        place = np.searchsorted(several, doc_id)
        place[place == len(several)] = 0
        found = several[place] == doc_id if len(several) else np.zeros(count, np.bool_)
        single += count - int(found.sum())
        seen[place[found]] = True
        done += count
    return single + int(seen.sum())
