"""What earlier segments of a chain have run, and what they left: worked out anew from plan rows.

A document of which something has run is *begun*. What is left of it is what the segment took of it
that ran something first, less all that has run; any other document is as in a fresh pass.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pipeline.shard.manifest import Manifest
from pipeline.spool import Spool
from pipeline.verify.stores import RawStore

TAIL = -1
"""`part` of a piece that stands in tail.parquet."""
PIECE = np.dtype(
    [
        ("position", np.int64),
        ("doc_id", np.int64),
        ("start", np.int64),
        ("stop", np.int64),
        ("source", np.int32),
        ("epoch", np.int32),
        ("part", np.int32),
        ("row", np.int32),
    ]
)
BUCKET_PIECES = 1 << 21
"""Pieces that a bucket is meant to hold: about 100 MB."""
_DOCUMENT_BITS = 33
"""Of a place in a document; a bucket has fewer than 2^30 documents."""


class Buckets:
    """Ranges of a source's documents that make about as many pieces each.

    Args:
        store: the source's token store.
        context_length: the least of the chain.
    """

    def __init__(self, store: RawStore, context_length: int) -> None:
        self._store = store
        self._context_length = context_length
        self.count = int(self.of(np.array([store.documents - 1]))[0]) + 1

    def of(self, doc_id: np.ndarray) -> np.ndarray:
        """The bucket of documents: a running count of the pieces that they are likely to make."""
        offsets = self._store.offsets[doc_id]
        return (doc_id + offsets // self._context_length) // BUCKET_PIECES

    def documents(self, bucket: int) -> range:
        """The documents of a bucket."""
        return range(self._first(bucket), self._first(bucket + 1))

    def _first(self, bucket: int) -> int:
        low, high = 0, self._store.documents
        while low < high:
            middle = (low + high) // 2
            if self.of(np.array([middle]))[0] < bucket:
                low = middle + 1
            else:
                high = middle
        return low


@dataclass(frozen=True)
class Left:
    """What is left of the begun documents of a bucket.

    `doc_id`, `start` and `stop` are intervals, ascending, (intervals,); `runs` the pieces that ran,
    by document and start, and `begun` their documents.
    """

    runs: np.ndarray
    begun: np.ndarray
    doc_id: np.ndarray
    start: np.ndarray
    stop: np.ndarray

    def interval_of(self, doc_id: np.ndarray, start: np.ndarray) -> np.ndarray:
        """The last interval of each document that begins at `start` or before; -1 for none."""
        if not len(self.doc_id):
            return np.full(len(doc_id), -1, np.int64)
        least = int(self.doc_id[0])
        places = ((self.doc_id - least) << _DOCUMENT_BITS) + self.start
        place = np.searchsorted(places, ((doc_id - least) << _DOCUMENT_BITS) + start, "right") - 1
        return np.where(self.doc_id[place] == doc_id, place, -1)


class Ran:
    """Pieces that the segments checked so far have run, on disk.

    Args:
        manifest: of the chain.
        stores: of its sources.
        scratch: an existing directory.
    """

    def __init__(self, manifest: Manifest, stores: list[RawStore], scratch: Path) -> None:
        self._manifest, self._stores, self._scratch = manifest, stores, scratch
        shortest = min(segment.context_length for segment in manifest.segments)
        self.buckets = [Buckets(store, shortest) for store in stores]
        self._spools: dict[tuple[int, int], Spool] = {}
        self.tokens: Counter[tuple[int, int]] = Counter()
        """That have run, by source and epoch."""

    def add(self, source: int, epoch: int, bucket: int, pieces: np.ndarray) -> None:
        """Take pieces of a bucket that have been checked; the tail's have not run."""
        pieces = pieces[pieces["part"] != TAIL]
        if not len(pieces):
            return
        name = f"ran-{source}-{epoch}"
        spool = self._spools.setdefault((source, epoch), Spool(self._scratch, name, PIECE))
        spool.add(np.full(len(pieces), bucket), pieces)
        self.tokens[source, epoch] += int((pieces["stop"] - pieces["start"]).sum())

    def reached(self, source: int) -> int:
        """The epoch after the last of which something has run."""
        return 1 + max((epoch for of, epoch in self._spools if of == source), default=-1)

    def left(self, source: int, epoch: int, bucket: int) -> Left:
        """What is left so far of the documents of a bucket that were begun."""
        spool = self._spools.get((source, epoch))
        runs = np.empty(0, PIECE) if spool is None else spool.read(bucket)
        runs = runs[np.lexsort((runs["start"], runs["doc_id"]))]
        firsts = np.array([segment.first_part for segment in self._manifest.segments])
        segment = np.searchsorted(firsts, runs["part"], side="right") - 1
        begun, first = np.unique(runs["doc_id"], return_index=True)
        if not len(begun):
            nothing = np.empty(0, np.int64)
            return Left(runs=runs, begun=nothing, doc_id=nothing, start=nothing, stop=nothing)
        most = np.array([entry.most_taken(source) for entry in self._manifest.segments])
        taken = np.minimum(
            self._stores[source].lengths[begun], most[np.minimum.reduceat(segment, first)]
        )
        # Each document's end stands behind its pieces as one without tokens; gaps lie before each.
        doc_id = np.concatenate([runs["doc_id"], begun])
        start = np.concatenate([runs["start"], taken])
        stop = np.concatenate([runs["stop"], taken])
        order = np.lexsort((stop, start, doc_id))
        doc_id, start, stop = doc_id[order], start[order], stop[order]
        before = np.concatenate([[0], stop[:-1]])
        before[np.diff(doc_id, prepend=-1) != 0] = 0
        gap = before < start
        return Left(runs=runs, begun=begun, doc_id=doc_id[gap], start=before[gap], stop=start[gap])
