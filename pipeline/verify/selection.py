"""What a segment may take of each source, and whether it took what it says."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np

from pipeline.shard.manifest import Manifest, Segment, SegmentSource
from pipeline.verify.result import VerifyError

_POLICIES = ("cut", "truncate", "drop", "error")
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


def check_policies(manifest: Manifest) -> None:
    """Every segment names each source once, with document policies that this program knows.

    Raises:
        VerifyError: the first that is another.
    """
    path = manifest.directory / "manifest.json"
    for number, segment in enumerate(manifest.segments):
        places = [entry.source for entry in segment.sources]
        if len(set(places)) != len(places) or not set(places) <= set(range(len(manifest.sources))):
            raise VerifyError(f"segments.{number}.sources are {places}", path=path)
        if segment.at_source_end not in ("stop", "drop"):
            raise VerifyError(
                f"segments.{number}.at_source_end is {segment.at_source_end!r}", path=path
            )
        for entry in segment.sources:
            if entry.longer_than_context not in _POLICIES:
                raise VerifyError(
                    f"longer_than_context is {entry.longer_than_context!r}, must be one of "
                    f"{', '.join(_POLICIES)}",
                    path=path,
                )


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


def has_ended(
    segment: Segment, entry: SegmentSource, whole: PassCounts, stream: StreamCounts
) -> bool:
    """Whether a source has no epoch left, or at least no piece of S tokens in its last one."""
    complete = all(
        stream.tokens_of[entry.source, epoch] == whole.tokens
        for epoch in range(int(entry.max_epochs))
    )
    limit, last = _last_pass(entry, whole, stream)
    return complete and last + segment.context_length > limit


def check_selection(
    manifest: Manifest, number: int, passes: Sequence[PassCounts], stream: StreamCounts
) -> None:
    """What a segment says of its sources is what lengths and pieces give.

    Args:
        manifest: of the set.
        number: of the segment.
        passes: what a pass takes of each of the segment's sources.
        stream: the segment's pieces, each found to be one that its source may have.

    Raises:
        VerifyError: the first figure that is another one, a pass that took more than its part, or
            a stream that ends where it may not.
    """
    segment, path = manifest.segments[number], manifest.directory / "manifest.json"
    for place, (entry, whole) in enumerate(zip(segment.sources, passes, strict=True)):
        for name, value in _expected(entry, whole, stream).items():
            found = getattr(entry, name)
            if found != value:
                raise VerifyError(
                    f"segments.{number}.sources.{place}.{name} is {found}, the files give {value}",
                    path=path,
                )
        limit, last = _last_pass(entry, whole, stream)
        if last > limit:
            raise VerifyError(
                f"the last pass over source {manifest.sources[entry.source].name!r} took {last} "
                f"tokens; max_epochs {entry.max_epochs} allows {limit}",
                path=manifest.directory / "plan",
            )
    ended = [
        has_ended(segment, entry, whole, stream)
        for entry, whole in zip(segment.sources, passes, strict=True)
    ]
    _check_end(segment, ended, manifest)


def _expected(entry: SegmentSource, whole: PassCounts, stream: StreamCounts) -> dict[str, int]:
    """The counts of a segment's entry."""
    epochs = [epoch for source, epoch in stream.tokens_of if source == entry.source]
    passes = 1 + max(epochs, default=0)
    last = (entry.source, passes - 1)
    return {
        "passes": passes,
        "tokens": sum(stream.tokens_of[entry.source, epoch] for epoch in range(passes)),
        "unselected_documents": whole.documents - stream.documents_of[last],
        "unselected_pieces": whole.pieces - stream.pieces_of[last],
        "unselected_tokens": whole.tokens - stream.tokens_of[last],
        **whole.left_out,
    }


def _last_pass(entry: SegmentSource, whole: PassCounts, stream: StreamCounts) -> tuple[int, int]:
    """Tokens that the pass after all whole ones may have, and those that it has."""
    epochs = Fraction(str(entry.max_epochs))
    limit = (epochs - int(epochs)) * whole.tokens
    return int(limit), stream.tokens_of[entry.source, int(epochs)]


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
