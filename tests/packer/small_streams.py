"""Sources of a few documents, and the streams of them as rows."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import numpy as np
from hypothesis import strategies as st

from packer.plan import Pieces
from packer.source_lengths import LONG_POLICIES, SourceLengths
from packer.stream import Stream
from tests import reference_stream as slow


def source(
    lengths: Sequence[int],
    weight: float | None = None,
    max_epochs: float = 1,
    min_tokens: int = 1,
    longer_than_context: str = "cut",
) -> SourceLengths:
    array = np.array(lengths, dtype=np.uint32)
    array.flags.writeable = False
    return SourceLengths(
        lengths=array,
        weight=weight,
        max_epochs=max_epochs,
        min_tokens=min_tokens,
        longer_than_context=longer_than_context,
    )


def whole(stream: Stream, num_pieces: int = 1 << 10) -> Pieces:
    return Pieces.concatenate(list(stream.chunks(num_pieces)))


def rows(pieces: Pieces) -> list[slow.Piece]:
    columns = (pieces.source, pieces.epoch, pieces.doc_id, pieces.doc_start, pieces.doc_stop)
    return list(zip(*(column.tolist() for column in columns), strict=True))


LENGTHS = st.lists(st.one_of(st.integers(1, 9), st.integers(1, 60)), min_size=1, max_size=30)
EPOCHS = st.sampled_from([1, 2, 3, 0.25, 0.7, 1.1, 1.5, 2.999])
LONGEST_KEPT = 20
"""Every drawn source has a document of so many tokens, which no policy leaves out."""


@st.composite
def mixtures(draw: st.DrawFn) -> list[SourceLengths]:
    number = draw(st.integers(1, 4))
    weighted = draw(st.booleans())
    weights = st.sampled_from([0.001, 0.3, 0.999, 1.0, 7.0])
    return [
        source(
            [*draw(LENGTHS), LONGEST_KEPT],
            draw(weights) if weighted else None,
            draw(EPOCHS),
            draw(st.sampled_from([1, 1, 3, LONGEST_KEPT])),
            draw(st.sampled_from(LONG_POLICIES)),
        )
        for _ in range(number)
    ]


def slow_sources(sources: Sequence[SourceLengths], stream: Stream) -> list[slow.SlowSource]:
    return [
        slow.SlowSource(
            s.lengths.tolist(),
            int(weight),
            Fraction(str(s.max_epochs)),
            s.min_tokens,
            s.longer_than_context,
        )
        for s, weight in zip(sources, stream.weights, strict=True)
    ]
