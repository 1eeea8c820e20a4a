"""Conservation: no token of the stream is lost or doubled, and documents stay whole.

Two sorts of all pieces, the tail's included, through buckets on disk. By position, the pieces must
lie end to end from 0 to the stream's length, and the sources' tokens keep to their quotas. By
document, the pieces of an epoch must be disjoint, whole parts of S tokens, and together all that is
taken of every document, in every epoch but the last one of each source.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from pipeline.shard.manifest import Manifest
from pipeline.spool import Spool
from pipeline.verify.part import row_group_of
from pipeline.verify.quotas import Quotas
from pipeline.verify.result import Progress, VerifyError
from pipeline.verify.selection import PassCounts, StreamCounts, has_ended, taken_tokens
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


class Conservation:
    """Collects the pieces of a segment, then checks them.

    Args:
        manifest: of the set.
        segment: number of the segment.
        stores: the sources' checked token stores.
        scratch: an existing directory for temporary files, about 100 bytes a piece.
    """

    def __init__(
        self,
        manifest: Manifest,
        segment: int,
        stores: list[RawStore],
        scratch: Path,
    ) -> None:
        self._manifest = manifest
        self._segment = manifest.segments[segment]
        self._stores = stores
        self._scratch = scratch
        stated = manifest.totals.get("stream_pieces")  # sizes buckets; checked with the totals
        pieces = max(1, stated) if isinstance(stated, int) else 1
        self._bucket_tokens = max(1, self._segment.stream_tokens * BUCKET_PIECES // pieces)
        self._stream = Spool(scratch, f"stream-{segment}", PIECE)
        self._documents: dict[tuple[int, int], Spool] = {}
        self._name = f"documents-{segment}"
        self._end = np.zeros(len(stores), np.int64)
        """Of each source's last piece, in the stream."""
        self.counts = StreamCounts()

    def add(self, pieces: np.ndarray) -> None:
        """Collect pieces, records of `PIECE`; each was found to lie in its document and stream."""
        self._stream.add(pieces["position"] // self._bucket_tokens, pieces)
        for source, epoch in np.unique(pieces[["source", "epoch"]]).tolist():
            mine = pieces[(pieces["source"] == source) & (pieces["epoch"] == epoch)]
            key = (source, epoch)
            if key not in self._documents:
                name = f"{self._name}-{source}-{epoch}"
                self._documents[key] = Spool(self._scratch, name, PIECE)
            self._documents[key].add(self._weight(source, mine["doc_id"]), mine)
            tokens = int((mine["stop"] - mine["start"]).sum())
            end = int((mine["position"] + mine["stop"] - mine["start"]).max())
            self._end[source] = max(self._end[source], end)
            taken = self._taken(source, self._stores[source].lengths[mine["doc_id"]])
            first = mine["start"] == 0
            self.counts.documents += int(first.sum())
            self.counts.cut_documents += int((first & (mine["stop"] < taken)).sum())
            self.counts.tokens_of[key] += tokens
            self.counts.tokens += tokens
        self.counts.pieces += len(pieces)

    def check(self, passes: Sequence[PassCounts], progress: Progress) -> StreamCounts:
        """Check all that was collected.

        Args:
            passes: what a pass takes of each of the segment's sources.
            progress: told of buckets and epochs.

        Raises:
            VerifyError: the first gap, overlap, or piece after which the mixture does not hold.
        """
        until = self._segment.stream_tokens
        if self._segment.at_source_end == "drop":
            ends = [
                int(self._end[entry.source])
                for entry, whole in zip(self._segment.sources, passes, strict=True)
                if has_ended(self._segment, entry, whole, self.counts)
            ]
            until = min(ends, default=until)
        self._check_stream(Quotas(self._segment, passes, until), progress)
        for done, (source, epoch) in enumerate(sorted(self._documents)):
            progress("documents", done, len(self._documents))
            self._check_epoch(source, epoch)
        self._check_epoch_order()
        progress("documents", len(self._documents), len(self._documents))
        return self.counts

    def _check_stream(self, quotas: Quotas, progress: Progress) -> None:
        """Sorted by position, pieces lie end to end, and sources keep their quotas."""
        length, expected = self._segment.stream_tokens, 0
        buckets = -(-length // self._bucket_tokens)
        for bucket in range(buckets):
            progress("stream", bucket, buckets)
            pieces = self._stream.take(bucket)
            pieces = pieces[np.argsort(pieces["position"], kind="stable")]
            stop = pieces["position"] + pieces["stop"] - pieces["start"]
            before = np.concatenate([[expected], stop[:-1]])
            wrong = np.flatnonzero(pieces["position"] != before)
            if len(wrong):
                piece, end = pieces[wrong[0]], int(before[wrong[0]])
                what = "overlap" if piece["position"] < end else "leave a gap"
                self._fail(piece, f"is at stream position {piece['position']}, but the pieces "
                           f"before it end at {end}: they {what}")  # fmt: skip
            expected = int(stop[-1]) if len(stop) else expected
            offender = quotas.first_offender(pieces["source"], pieces["stop"] - pieces["start"])
            if offender is not None:
                self._fail(pieces[offender[0]], offender[1])
        progress("stream", buckets, buckets)
        if expected != length:
            raise VerifyError(
                f"the pieces of plan and tail end at stream position {expected}, the segment's "
                f"stream has {length} tokens",
                path=self._manifest.directory / "tail.parquet",
            )

    def _check_epoch(self, source: int, epoch: int) -> None:
        """The pieces of an epoch are disjoint, and whole documents unless it is the last."""
        store, spool = self._stores[source], self._documents[source, epoch]
        whole = (source, epoch + 1) in self._documents
        first, last = 0, store.documents
        for bucket in range(int(self._weight(source, np.array([last - 1]))[0]) + 1):
            pieces = spool.take(bucket)
            stop = self._first_of(source, bucket + 1)
            self._check_documents(source, pieces)
            starts = pieces["start"] % self._segment.context_length == 0
            self.counts.documents_of[source, epoch] += len(np.unique(pieces["doc_id"]))
            self.counts.pieces_of[source, epoch] += int(starts.sum())
            if whole:
                self._check_whole(source, epoch, pieces, range(first, stop))
            first = stop

    def _check_documents(self, source: int, pieces: np.ndarray) -> None:
        """Pieces are disjoint, and in every S tokens of a document all or none are there."""
        pieces = pieces[np.lexsort((pieces["start"], pieces["doc_id"]))]
        same = np.diff(pieces["doc_id"]) == 0
        wrong = np.flatnonzero(same & (pieces["start"][1:] < pieces["stop"][:-1]))
        if len(wrong):
            before, piece = pieces[wrong[0]], pieces[wrong[0] + 1]
            self._fail(piece, f"shares tokens with piece [{before['start']}, {before['stop']}) of "
                       f"{self._place(before)[0]}")  # fmt: skip

        touch = np.zeros(len(pieces) + 1, np.bool_)  # a piece and the one before it
        touch[1:-1] = same & (pieces["start"][1:] == pieces["stop"][:-1])
        length, longest = self._stores[source].lengths, self._segment.context_length
        start, stop = pieces["start"], pieces["stop"]
        good = start // longest == (stop - 1) // longest
        good &= (start % longest == 0) | touch[:-1]
        at_end = stop == self._taken(source, length[pieces["doc_id"]])
        good &= (stop % longest == 0) | at_end | touch[1:]
        if not good.all():
            self._fail(pieces[int(np.argmin(good))], "is not, with those that it touches, one of "
                       f"the parts of {longest} tokens that its document is cut into")  # fmt: skip

    def _taken(self, source: int, length: np.ndarray) -> np.ndarray:
        return taken_tokens(self._segment, source, length)

    def _check_whole(self, source: int, epoch: int, pieces: np.ndarray, documents: range) -> None:
        """Disjoint pieces cover the documents of the range if their tokens add up."""
        covered = np.zeros(len(documents), np.int64)
        np.add.at(covered, pieces["doc_id"] - documents.start, pieces["stop"] - pieces["start"])
        length = self._stores[source].lengths[documents.start : documents.stop]
        taken = self._taken(source, length)
        wrong = np.flatnonzero(covered != taken)
        if len(wrong):
            name = self._manifest.sources[source].name
            raise VerifyError(
                f"document {documents.start + wrong[0]} of source {name!r} has "
                f"{taken[wrong[0]]} tokens to take, of which the rows of plan and tail hold "
                f"{covered[wrong[0]]} in epoch {epoch}, though a later epoch began",
                path=self._manifest.directory / "plan",
            )

    def _check_epoch_order(self) -> None:
        for source, epoch in self._documents:
            if epoch and (source, epoch - 1) not in self._documents:
                raise VerifyError(
                    f"source {self._manifest.sources[source].name!r} is in epoch {epoch}, but "
                    f"epoch {epoch - 1} holds nothing",
                    path=self._manifest.directory / "plan",
                )

    def _weight(self, source: int, doc_id: np.ndarray) -> np.ndarray:
        """The bucket of documents: a running count of the pieces that they are likely to make."""
        offsets = self._stores[source].offsets[doc_id]
        return (doc_id + offsets // self._segment.context_length) // BUCKET_PIECES

    def _first_of(self, source: int, bucket: int) -> int:
        """The first document of a bucket, by bisection."""
        low, high = 0, self._stores[source].documents
        while low < high:
            middle = (low + high) // 2
            if self._weight(source, np.array([middle]))[0] < bucket:
                low = middle + 1
            else:
                high = middle
        return low

    def _place(self, piece: Any) -> tuple[Path, int | None]:
        """The file and the row group that hold a piece."""
        if piece["part"] == TAIL:
            return self._manifest.directory / "tail.parquet", None
        path = self._manifest.plan_path(int(piece["part"]))
        return path, row_group_of(path, int(piece["row"]))

    def _fail(self, piece: Any, message: str) -> NoReturn:
        path, row_group = self._place(piece)
        source = self._manifest.sources[piece["source"]].name
        raise VerifyError(
            f"row {piece['row']}: piece [{piece['start']}, {piece['stop']}) of document "
            f"{piece['doc_id']} of source {source!r}, epoch {piece['epoch']}, {message}",
            path=path,
            row_group=row_group,
        )
