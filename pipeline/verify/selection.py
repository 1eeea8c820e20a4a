"""What a segment may take of each source, and whether it took what it says."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np

from pipeline.shard.manifest import Manifest, Segment, SegmentSource
from pipeline.verify.epochs import Epochs
from pipeline.verify.ran import Ran
from pipeline.verify.result import VerifyError
from pipeline.verify.stores import RawStore

_BLOCK = 1 << 20
"""Documents looked at together."""
REASONS = ("too_short", "too_long", "truncated")
"""Why a pass leaves out documents, or a part of them."""


@dataclass
class StreamCounts:
    """What the pieces of a segment amount to; a document counts with its first piece.

    `tokens_of`, `documents_of` and `pieces_of` are by (source, epoch): tokens, documents of which
    there is a piece, and pieces that begin at a multiple of S.
    """

    pieces: int = 0
    tokens: int = 0
    documents: int = 0
    cut_documents: int = 0
    tokens_of: Counter[tuple[int, int]] = field(default_factory=Counter)
    documents_of: Counter[tuple[int, int]] = field(default_factory=Counter)
    pieces_of: Counter[tuple[int, int]] = field(default_factory=Counter)

    def begun(self, source: int) -> set[int]:
        """The epochs of a source of which there is a piece."""
        return {epoch for of, epoch in self.tokens_of if of == source}


@dataclass
class PassCounts:
    """What one pass takes of a source, and by reason what it leaves out or cuts off."""

    documents: int = 0
    tokens: int = 0
    pieces: int = 0
    """Parts of S tokens, the last of a document shorter."""
    left_out: Counter[str] = field(default_factory=Counter)
    """By the name of the segment's field."""


def entry_of(segment: Segment, source: int) -> SegmentSource:
    """A source's entry in a segment that has it."""
    return next(entry for entry in segment.sources if entry.source == source)


def taken_tokens(segment: Segment, source: int, lengths: np.ndarray) -> np.ndarray:
    """Tokens that a pass takes of documents of these lengths, 0 where it leaves them out, int64."""
    entry, longest = entry_of(segment, source), segment.context_length
    tokens = lengths.astype(np.int64)
    if entry.longer_than_context == "truncate":
        taken = np.minimum(tokens, longest)
    elif entry.longer_than_context == "cut":
        taken = tokens.copy()
    else:
        taken = np.where(tokens > longest, 0, tokens)
    taken[tokens < entry.min_tokens] = 0
    return taken


def count_pass(segment: Segment, source: int, lengths: np.ndarray) -> PassCounts:
    """Count what a pass takes of a source, in one go through its lengths."""
    counts = PassCounts()
    entry, longest = entry_of(segment, source), segment.context_length
    for first in range(0, len(lengths), _BLOCK):
        tokens = lengths[first : first + _BLOCK].astype(np.int64)
        taken = taken_tokens(segment, source, tokens)
        short = tokens < entry.min_tokens
        counts.documents += int((taken > 0).sum())
        counts.tokens += int(taken.sum())
        counts.pieces += int((-(-taken // longest)).sum())
        left = {
            "too_short": short,
            "too_long": ~short & (taken == 0),
            "truncated": (taken > 0) & (taken < tokens),
        }
        for reason in REASONS:
            at = left[reason]
            counts.left_out[f"{reason}_documents"] += int(at.sum())
            counts.left_out[f"{reason}_tokens"] += int((tokens - taken)[at].sum())
    return counts


@dataclass
class SourcePasses:
    """The passes that a segment may take over one of its sources.

    `whole` is a fresh pass, `left` by epoch what earlier segments left of those up to the last that
    they began, `run_tokens` what they have run of each.
    """

    entry: SegmentSource
    whole: PassCounts
    left: list[PassCounts] = field(default_factory=list)
    run_tokens: list[int] = field(default_factory=list)

    @property
    def epochs(self) -> Epochs:
        """Which there are, in their order."""
        last = math.ceil(self.entry.max_epochs)
        begun = range(min(len(self.left), last))
        left = [epoch for epoch in begun if self.left[epoch].pieces and self.limit(epoch) > 0]
        return Epochs(left, range(len(self.left), last))

    def counts(self, epoch: int) -> PassCounts:
        """What a pass takes where nothing ends it early."""
        return self.left[epoch] if epoch < len(self.left) else self.whole

    def limit(self, epoch: int) -> int:
        """Tokens that a pass may have: all, or a part of a whole one less what has run of it."""
        epochs = Fraction(str(self.entry.max_epochs))
        if epoch < int(epochs):
            return self.counts(epoch).tokens
        run = self.run_tokens[epoch] if epoch < len(self.left) else 0
        return int((epochs - int(epochs)) * self.whole.tokens) - run

    @property
    def first(self) -> PassCounts:
        """The first of them."""
        return self.counts(self.epochs[0])


def passes_of(
    manifest: Manifest, number: int, stores: Sequence[RawStore], ran: Ran
) -> list[SourcePasses]:
    """The passes that a segment may take over each of its sources.

    Args:
        manifest: of the set.
        number: of the segment.
        stores: the sources' checked token stores.
        ran: what the segments before it have run.

    Raises:
        VerifyError: a source of which nothing is left.
    """
    segment, found = manifest.segments[number], []
    for place, entry in enumerate(segment.sources):
        source, lengths = entry.source, stores[entry.source].lengths
        epochs = range(ran.reached(source))
        passes = SourcePasses(
            entry=entry,
            whole=count_pass(segment, source, lengths),
            left=[_count_left(segment, source, epoch, lengths, ran) for epoch in epochs],
            run_tokens=[ran.tokens[source, epoch] for epoch in epochs],
        )
        if not passes.epochs:
            raise VerifyError(
                f"segments.{number}.sources.{place} has max_epochs {entry.max_epochs}, of which "
                "earlier segments left nothing",
                path=manifest.directory / "manifest.json",
            )
        found.append(passes)
    return found


def _count_left(
    segment: Segment, source: int, epoch: int, lengths: np.ndarray, ran: Ran
) -> PassCounts:
    """Count what earlier segments left of an epoch: untouched documents, and remains."""
    counts = PassCounts()
    for bucket in range(ran.buckets[source].count):
        documents = ran.buckets[source].documents(bucket)
        left = ran.left(source, epoch, bucket)
        taken = taken_tokens(segment, source, lengths[documents.start : documents.stop])
        taken[left.begun - documents.start] = 0
        remains = left.stop - left.start
        for tokens in (taken, remains):
            counts.tokens += int(tokens.sum())
            counts.pieces += int((-(-tokens // segment.context_length)).sum())
        counts.documents += int((taken > 0).sum()) + len(np.unique(left.doc_id))
    return counts


def has_ended(segment: Segment, passes: SourcePasses, stream: StreamCounts) -> bool:
    """Whether a source has no epoch left, or at least no piece of S tokens in its last one."""
    entry, epochs = passes.entry, passes.epochs
    last = epochs.last
    rest = {
        epoch: passes.limit(epoch) - stream.tokens_of[entry.source, epoch]
        for epoch in epochs.considered(stream.begun(entry.source))
    }
    if last < int(entry.max_epochs):  # a whole one
        return not any(rest.values())
    return rest.pop(last) < segment.context_length and not any(rest.values())


def check_selection(
    manifest: Manifest, number: int, passes: Sequence[SourcePasses], stream: StreamCounts
) -> None:
    """What a segment says of its sources is what lengths and pieces give.

    Args:
        manifest: of the set.
        number: of the segment.
        passes: that it may take over each of its sources.
        stream: the segment's pieces, each found to be one that its source may have.

    Raises:
        VerifyError: the first figure that is another one, a pass that took more than its part, or
            a stream that ends where it may not.
    """
    segment, path = manifest.segments[number], manifest.directory / "manifest.json"
    for place, own in enumerate(passes):
        entry = own.entry
        for name, value in _expected(own, stream).items():
            found = getattr(entry, name)
            if found != value:
                raise VerifyError(
                    f"segments.{number}.sources.{place}.{name} is {found}, the files give {value}",
                    path=path,
                )
        last = int(entry.max_epochs)  # of a part of an epoch, the epoch
        took, limit = stream.tokens_of[entry.source, last], own.limit(last)
        if took > max(0, limit):
            raise VerifyError(
                f"the last pass over source {manifest.sources[entry.source].name!r} took {took} "
                f"tokens; max_epochs {entry.max_epochs} allows {limit}",
                path=manifest.directory / "plan",
            )
    _check_end(segment, [has_ended(segment, own, stream) for own in passes], manifest)


def _expected(passes: SourcePasses, stream: StreamCounts) -> dict[str, int | None]:
    """The counts of a segment's entry."""
    source = passes.entry.source
    begun, epochs = stream.begun(source), passes.epochs
    number = max(1, sum(epoch in epochs for epoch in begun))
    last = epochs[number - 1]
    whole, key = passes.counts(last), (source, last)
    return {
        "passes": number,
        "last_epoch": None if last == number - 1 else last,
        "tokens": sum(stream.tokens_of[source, epoch] for epoch in begun),
        "unselected_documents": whole.documents - stream.documents_of[key],
        "unselected_pieces": whole.pieces - stream.pieces_of[key],
        "unselected_tokens": whole.tokens - stream.tokens_of[key],
        **passes.whole.left_out,
    }


def _check_end(segment: Segment, ended: list[bool], manifest: Manifest) -> None:
    """A stream ends at its target, or at the end of one source, or of all."""
    target, tokens = segment.target_tokens, segment.stream_tokens
    if target is not None and tokens > target:
        raise VerifyError(
            f"the stream has {tokens} tokens, its target is {target}",
            path=manifest.directory / "plan",
        )
    at_target = target is not None and tokens + segment.context_length > target
    at_end = all(ended) if segment.at_source_end == "drop" else any(ended)
    if not (at_target or at_end):
        which = "every source" if segment.at_source_end == "drop" else "a source"
        raise VerifyError(
            f"the stream ends with {tokens} tokens, neither at a target nor at the end of {which}",
            path=manifest.directory / "plan",
        )
