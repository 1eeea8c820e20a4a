"""The pool: what a chain's segments have run of each source, and so what they left.

What stands in plan rows has run; tails and unselected pieces have not. All pieces that ran go
through buckets on disk, a range of documents each; of a bucket follow the bits of documents that
were begun and the intervals that are left of them. How much of a begun document there is to run is
what the segment took of it that ran something of it first.

Memory is bounded by a bucket, and by the table of intervals.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np

from packer.passes import EarlierEpoch
from packer.plan import Pieces
from pipeline.planning.chain import Pool
from pipeline.planning.plan_parts import read_plan_part
from pipeline.shard.manifest import Manifest
from pipeline.shard.token_store import TokenStore
from pipeline.spool import Spool

BUCKET_TOKENS = 1 << 27
"""Tokens of a token store whose documents are looked at together."""
_RUN = np.dtype(
    [("doc_id", np.int64), ("start", np.int64), ("stop", np.int64), ("segment", np.int32)]
)


def pool_before(manifest: Manifest, segment: int, stores: list[TokenStore], scratch: Path) -> Pool:
    """What the segments before a given one have run, of sources of which something has.

    Args:
        manifest: of the chain; the digests of its plan were checked.
        segment: number of the segment, or how many there are.
        stores: of the chain's sources.
        scratch: a directory; bits stay there as files, and are mapped.
    """
    scratch.mkdir(parents=True, exist_ok=True)
    for left in scratch.glob("run-*"):
        left.unlink()  # of a job that died here
    runs = _Runs(stores, scratch)
    for number, earlier in enumerate(manifest.segments[:segment]):
        for part in range(earlier.first_part, earlier.stop_part):
            runs.add(number, read_plan_part(manifest.plan_path(part)).pieces)
    most_taken = {
        source: np.array([entry.most_taken(source) for entry in manifest.segments[:segment]])
        for source in runs.sources
    }
    return {source: runs.epochs_of(source, most_taken[source]) for source in runs.sources}


class _Runs:
    """All pieces that ran, by source, epoch and range of documents."""

    def __init__(self, stores: list[TokenStore], scratch: Path) -> None:
        self._stores, self._scratch = stores, scratch
        self._bucket_starts = [_bucket_starts(store) for store in stores]
        self._spools: dict[tuple[int, int], Spool] = {}
        self._tokens: Counter[tuple[int, int]] = Counter()

    @property
    def sources(self) -> list[int]:
        """Of which something has run, ascending."""
        return sorted({source for source, _ in self._spools})

    def add(self, segment: int, pieces: Pieces) -> None:
        """Take the pieces of a plan part."""
        records = np.empty(len(pieces), _RUN)
        records["doc_id"], records["segment"] = pieces.doc_id, segment
        records["start"], records["stop"] = pieces.doc_start, pieces.doc_stop
        for source in np.unique(pieces.source).tolist():
            for epoch in np.unique(pieces.epoch[pieces.source == source]).tolist():
                mine = records[(pieces.source == source) & (pieces.epoch == epoch)]
                key = (source, epoch)
                if key not in self._spools:
                    self._spools[key] = Spool(self._scratch, f"run-{source}-{epoch}", _RUN)
                starts = self._bucket_starts[source]
                bucket = np.searchsorted(starts, mine["doc_id"], side="right") - 1
                self._spools[key].add(bucket, mine)
                self._tokens[key] += int((mine["stop"] - mine["start"]).sum())

    def epochs_of(self, source: int, most_taken: np.ndarray) -> tuple[EarlierEpoch, ...]:
        """What has run of a source's epochs.

        Args:
            source: which.
            most_taken: tokens that each segment takes of a document at most, (segments,).
        """
        store = self._stores[source]
        reached = 1 + max(epoch for of, epoch in self._spools if of == source)
        path = self._scratch / f"begun-{source}.bits"
        shape = (reached, -(-store.documents // 8))
        bits = np.memmap(path, np.uint8, mode="w+", shape=shape)
        tables = [self._epoch(source, epoch, most_taken, bits[epoch]) for epoch in range(reached)]
        bits.flush()
        mapped = np.memmap(path, np.uint8, mode="r", shape=shape).view(np.ndarray)
        return tuple(
            EarlierEpoch(
                begun=mapped[epoch],
                doc_id=table[0],
                start=table[1],
                stop=table[2],
                run_tokens=self._tokens[source, epoch],
            )
            for epoch, table in enumerate(tables)
        )

    def _epoch(
        self, source: int, epoch: int, most_taken: np.ndarray, bits: np.ndarray
    ) -> np.ndarray:
        """Set the bits of an epoch; the intervals that are left, int64, (3, intervals)."""
        tables = [np.empty((3, 0), np.int64)]
        spool = self._spools.get((source, epoch))
        for bucket in range(len(self._bucket_starts[source]) if spool else 0):
            assert spool is not None
            runs = spool.take(bucket)
            doc_id = np.unique(runs["doc_id"])
            np.bitwise_or.at(bits, doc_id >> 3, np.uint8(1) << (doc_id & 7).astype(np.uint8))
            tables.append(_left(runs, self._stores[source].lengths, most_taken))
        return np.concatenate(tables, axis=1)


def _left(runs: np.ndarray, lengths: np.ndarray, most_taken: np.ndarray) -> np.ndarray:
    """What is left of the documents of these pieces: doc_id, start, stop, (3, intervals)."""
    if not len(runs):
        return np.empty((3, 0), np.int64)
    runs = runs[np.lexsort((runs["start"], runs["doc_id"]))]
    doc_id, start, stop = (runs[name] for name in ("doc_id", "start", "stop"))
    is_first = np.diff(doc_id, prepend=-1) != 0
    is_last = np.append(is_first[1:], True)
    first = np.flatnonzero(is_first)
    segment = np.minimum.reduceat(runs["segment"], first)  # which began each document
    end = np.minimum(lengths[doc_id[first]].astype(np.int64), most_taken[segment])
    before = np.where(is_first, 0, np.append(0, stop[:-1]))
    gap = start > before
    rest = stop[is_last] < end
    left = np.concatenate(
        [
            np.stack([doc_id[gap], before[gap], start[gap]]),
            np.stack([doc_id[is_last][rest], stop[is_last][rest], end[rest]]),
        ],
        axis=1,
    )
    return left[:, np.lexsort((left[1], left[0]))]


def _bucket_starts(store: TokenStore) -> np.ndarray:
    """The first document of each bucket: parts of the store, about `BUCKET_TOKENS` together."""
    before = np.cumsum(store.parts.tokens) - store.parts.tokens
    first = np.flatnonzero(np.diff(before // BUCKET_TOKENS, prepend=-1))
    return store.parts.first_doc_id[first]
