"""A segment cut after some of its steps: the same segment, of a stream that ended there.

The stream of the cut segment ends with the furthest of its pieces that runs before the cut. What of
it does not run before is the tail. Displacement is bounded, so everything up to some steps before
the cut has run, and only what arrived later is looked at piece by piece.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from packer.plan import Pieces, Steps
from packer.stream import Stream
from pipeline.planning.chain import Pool
from pipeline.planning.mixing import replay, segment_sources
from pipeline.planning.plan_parts import read_plan_part
from pipeline.shard.manifest import Manifest
from pipeline.shard.segment import Segment
from pipeline.shard.tables import FormatError
from pipeline.shard.token_store import TokenStore


def cut_segment(
    manifest: Manifest,
    number: int,
    stop_step: int,
    stores: Sequence[TokenStore],
    pool: Pool,
    *,
    placed_tokens: int,
) -> tuple[Segment, Pieces]:
    """A segment that ends before a step, and its tail.

    Args:
        manifest: of the chain.
        number: of the segment.
        stop_step: the step, of the segment and not its first.
        stores: of the chain's sources.
        pool: what the segments before it have run.
        placed_tokens: of the steps that are left.

    Raises:
        FormatError: the plan is not what its stream gives.
    """
    segment = manifest.segments[number]
    steps, reach = stop_step - segment.first_step, segment.max_displacement
    complete = max(0, steps - reach) * segment.intake_tokens  # all before this has run
    first = max(0, complete - segment.context_length) // segment.intake_tokens - reach
    placed = _placed(manifest, segment.first_step + max(0, first), stop_step)
    placed = placed.take(placed.position + placed.tokens > complete)
    furthest = int((placed.position + placed.tokens).max(initial=complete))
    end = _end_of_piece(
        replay(segment, stores, pool, target_tokens=segment.target_tokens), furthest
    )
    stream = replay(segment, stores, pool, target_tokens=end)
    run = stream.chunks()
    late = Pieces.concatenate(
        [pieces.take(pieces.position + pieces.tokens > complete) for pieces in run]
    )
    tail = _not_placed(late, placed, complete)
    agree = placed_tokens + int(tail.tokens.sum()) == end and _is_of(placed, late)
    if not agree:
        raise FormatError(
            "is not what the segment's stream gives; steelyard verify finds where",
            path=manifest.plan_path(manifest.part_of(stop_step - 1)),
        )
    asked = [
        {
            "weight": entry.weight,
            "max_epochs": entry.max_epochs,
            "min_tokens": entry.min_tokens,
            "longer_than_context": entry.longer_than_context,
        }
        for entry in segment.sources
    ]
    cut = replace(
        segment,
        steps=steps,
        parts=manifest.part_of(stop_step - 1) - segment.first_part + 1,
        sources=segment_sources(asked, stream, run.selection()),
        stream_tokens=end,
        target_tokens=end,
        cut=True,
    )
    return cut, tail


def _placed(manifest: Manifest, first_step: int, stop_step: int) -> Pieces:
    """The pieces of some steps, ascending by position."""
    found = []
    for part in range(manifest.part_of(first_step), manifest.part_of(stop_step - 1) + 1):
        found.append(take_until(read_plan_part(manifest.plan_path(part)), stop_step).pieces)
    pieces = Pieces.concatenate(found)
    return pieces.take(np.argsort(pieces.position, kind="stable"))


def take_until(steps: Steps, stop_step: int) -> Steps:
    """The steps of a part before a given one."""
    return steps.take_steps(0, min(steps.num_steps, stop_step - steps.first_step))


def _end_of_piece(stream: Stream, position: int) -> int:
    """Where the piece ends that holds the last token before a position of the stream."""
    for pieces in stream.chunks():
        ends = pieces.position + pieces.tokens
        if ends[-1] >= position:
            return int(ends[np.searchsorted(ends, position)])
    return position


def _not_placed(stream: Pieces, placed: Pieces, complete: int) -> Pieces:
    """The parts of pieces, in stream order, that no placed piece covers.

    Args:
        stream: consecutive pieces of it, to its end.
        placed: pieces or parts of pieces, ascending by position.
        complete: the stream position before which everything has been placed.
    """
    if not len(stream):
        return stream
    stop = placed.position + placed.tokens
    end = stream.position[-1:] + stream.tokens[-1:]
    edges = np.unique(
        np.concatenate([stream.position, end, placed.position, stop, [complete]], dtype=np.int64)
    )
    edges = edges[(edges >= stream.position[0]) & (edges <= end)]
    begin, length = edges[:-1], np.diff(edges)
    covering = np.searchsorted(placed.position, begin, side="right") - 1
    covered = (covering >= 0) & (np.append(stop, 0)[covering] > begin)
    missing = np.flatnonzero(~covered & (begin >= complete))
    of = np.searchsorted(stream.position, begin[missing], side="right") - 1
    pieces = stream.take(of)
    start = pieces.doc_start + begin[missing] - pieces.position
    return replace(
        pieces, doc_start=start, doc_stop=start + length[missing], position=begin[missing]
    )


def _is_of(placed: Pieces, stream: Pieces) -> bool:
    """Whether placed pieces are parts of those of the stream, where these begin."""
    placed = placed.take(placed.position >= stream.position[0]) if len(stream) else placed
    of = np.searchsorted(stream.position, placed.position, side="right") - 1
    if len(placed) and (not len(stream) or np.any(of < 0)):
        return False
    pieces = stream.take(of)
    same = (pieces.source == placed.source) & (pieces.epoch == placed.epoch)
    same &= pieces.doc_id == placed.doc_id
    same &= placed.doc_start - pieces.doc_start == placed.position - pieces.position
    return bool(np.all(same & (placed.doc_stop <= pieces.doc_stop)))
