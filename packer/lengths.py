"""Document lengths for experiments: the distribution of WLB-LLM's Figure 3, as a counter.

Nothing here depends on a library's random numbers: document i of seed s is a pure function of
(s, i), so that any other implementation can make the same lengths.
"""

from __future__ import annotations

import numpy as np

from packer.plan import Int64

WINDOW = 131_072
"""Tokens of the longest document: the context length of the job that the figure shows."""
BIN_COUNTS = (
    96784, 1158, 313, 159, 85, 76, 45, 39, 27, 25, 22, 30, 30, 19, 36, 33, 22, 16, 16, 108
)  # fmt: skip
"""Documents in each of the figure's 20 bins of WINDOW / 20 tokens (arXiv 2503.17924, Fig. 3 left;
the first count is printed there, the others were read from the picture, give or take 3)."""
FIRST_BIN_MEAN = 950.0
"""Mean of the exponential that fills the first bin, in tokens: it gives the figure's right panel,
where documents under half the window hold just over 75% of the tokens."""
FULL_SHARE = 0.9
"""Share of the last bin that is exactly WINDOW long: the spike of documents cut at the window."""


def splitmix64(seed: int, counter: np.ndarray) -> np.ndarray:
    """The `counter`-th outputs of the SplitMix64 generator started at `seed`, uint64, same shape.

    Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014.
    """
    with np.errstate(over="ignore"):
        z = np.uint64(seed % 2**64) + (counter.astype(np.uint64) + np.uint64(1)) * np.uint64(
            0x9E3779B97F4A7C15
        )
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))


def uniforms(seed: int, counter: np.ndarray) -> np.ndarray:
    """Uniform float64 in [0, 1) with 53 bits, same shape as `counter`."""
    return (splitmix64(seed, counter) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def fig3_lengths(num_documents: int, seed: int) -> Int64:
    """Lengths in tokens of `num_documents` documents, shape (num_documents,).

    Two uniforms a document: the first chooses its bin by the counts, the second its place in the
    bin. In the first bin that is an exponential cut off at the bin's end, in the last one 90% are
    exactly WINDOW, elsewhere it is uniform. Rounded down to a token, at least 1.
    """
    document = np.arange(num_documents, dtype=np.uint64)
    choice = uniforms(seed, document * np.uint64(2))
    place = uniforms(seed, document * np.uint64(2) + np.uint64(1))
    edges = np.cumsum(BIN_COUNTS)
    number = np.searchsorted(edges, np.floor(choice * edges[-1]), side="right")
    width = WINDOW / len(BIN_COUNTS)
    length = (number + place) * width
    cut = -np.expm1(-width / FIRST_BIN_MEAN)
    length = np.where(number == 0, -FIRST_BIN_MEAN * np.log1p(-place * cut), length)
    last = len(BIN_COUNTS) - 1
    rest = (last + (place - FULL_SHARE) / (1 - FULL_SHARE)) * width
    length = np.where(number == last, np.where(place < FULL_SHARE, float(WINDOW), rest), length)
    return np.clip(length.astype(np.int64), 1, WINDOW)
