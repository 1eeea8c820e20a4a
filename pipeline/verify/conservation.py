"""Conservation: no token of the stream is lost or doubled, and documents stay whole.

Two sorts of all pieces, the tail's included, through buckets on disk. By position, the pieces must
lie end to end from 0 to the stream's length, and the sources' tokens keep to their quotas. By
document, the pieces of an epoch must be disjoint, whole parts of S tokens, and together all that is
taken of every document, in every epoch but the last one of each source. Along a chain that is what
earlier segments have not run.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from pipeline.shard.manifest import Manifest
from pipeline.shard.segment import EVERYTHING
from pipeline.spool import Spool
from pipeline.verify import ran as ran_module
from pipeline.verify.part import row_group_of
from pipeline.verify.quotas import Quotas
from pipeline.verify.ran import PIECE, TAIL, Left, Ran
from pipeline.verify.result import Progress, VerifyError
from pipeline.verify.selection import SourcePasses, StreamCounts, has_ended, taken_tokens
from pipeline.verify.stores import RawStore


class Conservation:
    """Collects the pieces of a segment, then checks them.

    Args:
        manifest: of the set.
        segment: number of the segment.
        stores: the sources' checked token stores.
        ran: what earlier segments have run; for later ones this one's pieces are added as they
            are checked.
        scratch: an existing directory for temporary files, about 100 bytes a piece.
        pieces: about how many all segments have, from the files; it sizes buckets.
    """

    def __init__(
        self,
        manifest: Manifest,
        segment: int,
        stores: list[RawStore],
        ran: Ran,
        scratch: Path,
        pieces: int,
    ) -> None:
        self._manifest = manifest
        self._ran = ran
        self._segment = manifest.segments[segment]
        self._is_last = segment == len(manifest.segments) - 1
        self._stores = stores
        self._scratch = scratch
        tokens = self._segment.stream_tokens * ran_module.BUCKET_PIECES // max(1, pieces)
        self._bucket_tokens = max(1, min(tokens, EVERYTHING))
        self._stream = Spool(scratch, f"stream-{segment}", PIECE)
        self._documents: dict[tuple[int, int], Spool] = {}
        self._name = f"documents-{segment}"
        self._end = np.zeros(len(stores), np.int64)
        """Of each source's last piece, in the stream."""
        self.placed_end = 0
        """Of the last piece that a row holds."""
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
            self._documents[key].add(self._ran.buckets[source].of(mine["doc_id"]), mine)
            tokens = int((mine["stop"] - mine["start"]).sum())
            end = int((mine["position"] + mine["stop"] - mine["start"]).max())
            self._end[source] = max(self._end[source], end)
            length = self._stores[source].lengths[mine["doc_id"]].astype(np.int64)
            taken = np.minimum(length, self._segment.most_taken(source))
            first = mine["start"] == 0
            self.counts.documents += int(first.sum())
            self.counts.cut_documents += int((first & (mine["stop"] < taken)).sum())
            self.counts.tokens_of[key] += tokens
            self.counts.tokens += tokens
        self.counts.pieces += len(pieces)
        rows = pieces[pieces["part"] != TAIL]
        if len(rows):
            end = int((rows["position"] + rows["stop"] - rows["start"]).max())
            self.placed_end = max(self.placed_end, end)

    def check(self, passes: Sequence[SourcePasses], progress: Progress) -> StreamCounts:
        """Check all that was collected.

        Args:
            passes: that may be taken over each of the segment's sources.
            progress: told of buckets and epochs.

        Raises:
            VerifyError: the first gap, overlap, or piece after which the mixture does not hold.
        """
        until = self._segment.stream_tokens
        if self._segment.at_source_end == "drop":
            ends = [
                int(self._end[own.entry.source])
                for own in passes
                if has_ended(self._segment, own, self.counts)
            ]
            until = min(ends, default=until)
        self._check_stream(Quotas(self._segment, passes, until), progress)
        for done, (source, epoch) in enumerate(sorted(self._documents)):
            progress("documents", done, len(self._documents))
            self._check_epoch(source, epoch)
        for own in passes:
            self._check_epoch_order(own)
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
        spool, buckets = self._documents[source, epoch], self._ran.buckets[source]
        whole = any(of == source and later > epoch for of, later in self._documents)
        for bucket in range(buckets.count):
            pieces, left = spool.take(bucket), self._ran.left(source, epoch, bucket)
            pieces = pieces[np.lexsort((pieces["start"], pieces["doc_id"]))]
            begin, end = self._taken_of(source, pieces, left)
            self._check_documents(pieces, begin, end)
            starts = (pieces["start"] - begin) % self._segment.context_length == 0
            self.counts.documents_of[source, epoch] += len(np.unique(pieces["doc_id"]))
            self.counts.pieces_of[source, epoch] += int(starts.sum())
            if whole:
                self._check_whole(source, epoch, pieces, buckets.documents(bucket), left)
            if not self._is_last:
                self._ran.add(source, epoch, bucket, pieces)

    def _taken_of(
        self, source: int, pieces: np.ndarray, left: Left
    ) -> tuple[np.ndarray, np.ndarray]:
        """Where what is taken of each piece's document begins and ends, around the piece."""
        begin = np.zeros(len(pieces), np.int64)
        end = taken_tokens(self._segment, source, self._stores[source].lengths[pieces["doc_id"]])
        begun = np.isin(pieces["doc_id"], left.begun)
        wrong = np.flatnonzero(~begun & (pieces["stop"] > end))
        if len(wrong):
            self._fail(pieces[wrong[0]], f"reaches over the {end[wrong[0]]} tokens that are taken "
                       "of its document")  # fmt: skip
        mine = np.flatnonzero(begun)
        interval = left.interval_of(pieces["doc_id"][mine], pieces["start"][mine])
        inside = interval >= 0
        inside[inside] = pieces["stop"][mine[inside]] <= left.stop[interval[inside]]
        if not inside.all():
            self._fail_begun(pieces[mine[np.argmin(inside)]], left)
        begin[mine], end[mine] = left.start[interval], left.stop[interval]
        return begin, end

    def _fail_begun(self, piece: Any, left: Left) -> NoReturn:
        """Say of a piece of a begun document why it may not be."""
        runs = left.runs[left.runs["doc_id"] == piece["doc_id"]]
        shared = runs[(runs["start"] < piece["stop"]) & (runs["stop"] > piece["start"])]
        if len(shared):
            run = shared[0]
            self._fail(piece, f"shares tokens with piece [{run['start']}, {run['stop']}) of "
                       f"{self._place(run)[0]}, which an earlier segment ran")  # fmt: skip
        self._fail(piece, "is behind what the segment that began its document took of it")

    def _check_documents(self, pieces: np.ndarray, begin: np.ndarray, end: np.ndarray) -> None:
        """Pieces are disjoint, and in every S tokens of what is taken all or none are there.

        Args:
            pieces: by document and start, (pieces,).
            begin: where what is taken of the document begins, (pieces,).
            end: where it ends, (pieces,).
        """
        same = np.diff(pieces["doc_id"]) == 0
        wrong = np.flatnonzero(same & (pieces["start"][1:] < pieces["stop"][:-1]))
        if len(wrong):
            before, piece = pieces[wrong[0]], pieces[wrong[0] + 1]
            self._fail(piece, f"shares tokens with piece [{before['start']}, {before['stop']}) of "
                       f"{self._place(before)[0]}")  # fmt: skip

        touch = np.zeros(len(pieces) + 1, np.bool_)  # a piece and the one before it
        touch[1:-1] = same & (pieces["start"][1:] == pieces["stop"][:-1])
        longest = self._segment.context_length
        start, stop = pieces["start"] - begin, pieces["stop"] - begin
        good = start // longest == (stop - 1) // longest
        good &= (start % longest == 0) | touch[:-1]
        good &= (stop % longest == 0) | (pieces["stop"] == end) | touch[1:]
        if not good.all():
            self._fail(pieces[int(np.argmin(good))], "is not, with those that it touches, one of "
                       f"the parts of {longest} tokens that its document is cut into")  # fmt: skip

    def _check_whole(
        self, source: int, epoch: int, pieces: np.ndarray, documents: range, left: Left
    ) -> None:
        """Disjoint pieces cover the documents of the range if their tokens add up."""
        covered = np.zeros(len(documents), np.int64)
        np.add.at(covered, pieces["doc_id"] - documents.start, pieces["stop"] - pieces["start"])
        length = self._stores[source].lengths[documents.start : documents.stop]
        taken = taken_tokens(self._segment, source, length)
        taken[left.begun - documents.start] = 0
        np.add.at(taken, left.doc_id - documents.start, left.stop - left.start)
        wrong = np.flatnonzero(covered != taken)
        if len(wrong):
            name = self._manifest.sources[source].name
            raise VerifyError(
                f"document {documents.start + wrong[0]} of source {name!r} has "
                f"{taken[wrong[0]]} tokens to take, of which the rows of plan and tail hold "
                f"{covered[wrong[0]]} in epoch {epoch}, though a later epoch began",
                path=self._manifest.directory / "plan",
            )

    def _check_epoch_order(self, passes: SourcePasses) -> None:
        """The epochs of a source are the first ones of those that there are."""
        source = passes.entry.source
        begun = {epoch for of, epoch in self._documents if of == source}
        reached = max(begun, default=-1)
        epochs = passes.epochs
        absent = epochs.first_without(begun)
        skipped = absent is not None and absent < reached
        if skipped or any(epoch not in epochs for epoch in begun):
            what = f"epoch {absent} holds nothing" if skipped else "none of it is left"
            raise VerifyError(
                f"source {self._manifest.sources[source].name!r} is in epoch {reached}, but {what}",
                path=self._manifest.directory / "plan",
            )

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
