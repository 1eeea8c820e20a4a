"""The lengths of WLB-LLM's Figure 3, read as what is left of documents in a stream of windows.

The figure ends at the window of 131,072 tokens with a spike, and between a third and the whole of
the window its bins hold 16 to 36 documents each, about alike. A stream of documents that is cut at
every window's border has just that: a cut anywhere in a document leaves two parts of any length,
and what is longer than two windows leaves whole ones. So the figure may show the parts, and a
stream of its lengths, cut again, is cut twice. Here documents are drawn such that the parts have
the figure's counts.

Of documents r(x) of length x < S, a border meets x / S and leaves parts of any length below x
alike; a longer one leaves a first and a last part of any length, and x / S - 1 whole windows. With
R(x) documents longer than x, a bin of S / 20 then holds

    h(x) = r(x) (1 - x / S) + R(x) / 10

which gives r from the last bin down; where a count is below R / 10, by what the figure's reading
and chance allow, r is 0. In the last bin h less the spike leaves R = 108 documents longer than the
window, and the spike's 97 windows say that these have 1.9 windows on average; they are taken to be
exponential beyond the first.
"""

from __future__ import annotations

import numpy as np

from packer.lengths import BIN_COUNTS, FIRST_BIN_MEAN, FULL_SHARE, WINDOW, uniforms
from packer.plan import Int64

_BINS = len(BIN_COUNTS)


def document_counts() -> Int64:
    """Documents in each bin before the cut, and of all longer than the window, (bins + 1,)."""
    parts = [float(count) for count in BIN_COUNTS]
    parts[-1] *= 1 - FULL_SHARE
    longer = parts[-1] * _BINS / 2
    counts = [longer]
    for number in reversed(range(_BINS)):
        middle = (number + 0.5) / _BINS
        counts.append(max(0.0, parts[number] - sum(counts) * 2 / _BINS) / (1 - middle))
    return np.rint(counts[::-1]).astype(np.int64)


def uncut_lengths(num_documents: int, seed: int) -> Int64:
    """Lengths in tokens of documents before the cut, shape (num_documents,).

    Two uniforms a document, as `packer.lengths.fig3_lengths` takes them.
    """
    document = np.arange(num_documents, dtype=np.uint64)
    choice = uniforms(seed, document * np.uint64(2))
    place = uniforms(seed, document * np.uint64(2) + np.uint64(1))
    edges = np.cumsum(document_counts())
    number = np.searchsorted(edges, np.floor(choice * edges[-1]), side="right")
    width = WINDOW / _BINS
    length = (number + place) * width
    cut = -np.expm1(-width / FIRST_BIN_MEAN)
    length = np.where(number == 0, -FIRST_BIN_MEAN * np.log1p(-place * cut), length)
    beyond = BIN_COUNTS[-1] * FULL_SHARE / document_counts()[-1]  # in windows
    longer = WINDOW * (1 - beyond * np.log1p(-place))
    return np.maximum(np.where(number == _BINS, longer, length).astype(np.int64), 1)


def fig3_stream_lengths(num_documents: int, seed: int) -> Int64:
    """The parts of a stream of that many documents cut at every window's border, in its order.

    Shape (parts,); parts fill window after window, but for the last one.
    """
    ends = np.cumsum(uncut_lengths(num_documents, seed))
    if not len(ends):
        return ends
    borders = np.arange(WINDOW, int(ends[-1]), WINDOW, dtype=np.int64)
    return np.diff(np.union1d(ends, borders), prepend=0)
