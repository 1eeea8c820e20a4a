"""Ranges of integers and copies of ranges, many at once: what reading does for every micro-batch.

Long spans are joined one after the other, short ones copied by an index; both give the same.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

_LONG = 64
"""Mean length from which joining spans was measured to beat one indexed copy."""
_FIRST_COUNT = 1 << 17
LARGEST_BOUNDARY = (1 << 31) - 1


def spans(starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """The integers of each span `[start, start + length)`, one span after the other; int64.

    Example:
        >>> spans(np.array([7, 2]), np.array([2, 3]))
        array([7, 8, 2, 3, 4])
    """
    lengths = lengths.astype(np.int64)
    out = np.empty(int(lengths.sum()), np.int64)
    fill_spans(out, starts, lengths)
    return out


def fill_spans(out: np.ndarray, starts: np.ndarray, lengths: np.ndarray) -> None:
    """As `spans`, into an array that has room for exactly these integers."""
    if len(out) <= _LONG * len(lengths):
        out[:] = _indexed(starts, lengths)
    else:
        _join(counting(int((starts + lengths).max())), starts, lengths, out)


def take_spans(
    values: np.ndarray, starts: np.ndarray, lengths: np.ndarray, out: np.ndarray
) -> None:
    """Copy `values[start : start + length]` of each span to `out`, one after the other."""
    if len(out) <= _LONG * len(lengths):
        out[:] = values[_indexed(starts, lengths)]
    else:
        _join(values, starts, lengths, out)


def counting(count: int) -> np.ndarray:
    """0, 1, .. `count` - 1: int64, read-only, a view of one array that all callers share."""
    size = max(_FIRST_COUNT, 1 << max(0, count - 1).bit_length())
    return _numbers(size)[:count]


def boundaries(lengths: np.ndarray) -> np.ndarray:
    """Spans of these lengths laid end to end: int32, one more entry than spans, first 0.

    Raises:
        ValueError: as `as_boundaries`.
    """
    ends = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=ends[1:])
    return as_boundaries(ends)


def as_boundaries(ends: np.ndarray) -> np.ndarray:
    """Ends of spans, int64, as attention kernels take them: int32, same shape.

    Raises:
        ValueError: one that 32 bits do not hold.
    """
    largest = int(ends.max(initial=0))
    if largest > LARGEST_BOUNDARY:
        raise ValueError(
            f"a micro-batch has boundaries up to {largest}; attention kernels count tokens and "
            f"keys in 32 bits, up to {LARGEST_BOUNDARY}: plan smaller micro-batches, or cut their "
            "pieces in fewer chunks"
        )
    return ends.astype(np.int32)


def _join(values: np.ndarray, starts: np.ndarray, lengths: np.ndarray, out: np.ndarray) -> None:
    places = zip(starts.tolist(), (starts + lengths).tolist(), strict=True)
    np.concatenate([values[start:stop] for start, stop in places], out=out, casting="same_kind")


def _indexed(starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    ends = np.cumsum(lengths, dtype=np.int64)
    total = int(ends[-1]) if len(ends) else 0
    return np.arange(total, dtype=np.int64) + np.repeat(starts - (ends - lengths), lengths)


@lru_cache(maxsize=4)
def _numbers(size: int) -> np.ndarray:
    numbers = np.arange(size, dtype=np.int64)
    numbers.setflags(write=False)
    return numbers
