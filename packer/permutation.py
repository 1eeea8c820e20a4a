"""A shuffle that is computed, not stored.

A keyed permutation of [0, size) whose value at any index costs the same and needs no memory, so
that a billion documents are shuffled without a table of them. It is a balanced Feistel network
over the smallest even number of bits that holds `size`; a value that falls outside is put through
again until it falls inside ("cycle walking", Black and Rogaway, 2002), fewer than four times on
average. The round function is the finaliser of splitmix64. It is a shuffle, not a cipher.
"""

from __future__ import annotations

import numpy as np

from packer.jit import kernel

ROUNDS = 6
LARGEST_SIZE = 1 << 62
"""The largest domain: two halves of 31 bits."""
SMALLEST_HALF = 2
"""Bits of the smallest half. Two halves of one bit reach only 8 of the 24 orders of 4."""
_GAMMA = 0x9E3779B97F4A7C15
_WORD = (1 << 64) - 1


def permute(index: np.ndarray, *, size: int, key: int) -> np.ndarray:
    """The places of `index` under the permutation of [0, size) that `key` names.

    Args:
        index: integers in [0, size), any integer type, shape (n,); repeats are allowed.
        size: length of what is shuffled, 1 .. 2^62.
        key: 0 .. 2^64 - 1, see `stream_key`.

    Returns:
        int64 (n,). Over `np.arange(size)` every value in [0, size) occurs exactly once.

    Raises:
        ValueError: size, key or an index out of range.
    """
    if not 1 <= size <= LARGEST_SIZE:
        raise ValueError(f"size is {size}; a permutation needs 1..{LARGEST_SIZE} places")
    if not 0 <= key <= _WORD:
        raise ValueError(f"key is {key}; it must be an unsigned 64-bit integer")
    places = np.ascontiguousarray(index, dtype=np.int64)
    if places.size and not 0 <= int(places.min()) <= int(places.max()) < size:
        raise ValueError(
            f"index runs from {int(places.min())} to {int(places.max())}, outside [0, {size})"
        )
    half = max(SMALLEST_HALF, ((size - 1).bit_length() + 1) // 2)
    permuted = np.empty_like(places)
    with np.errstate(over="ignore"):  # for NUMBA_DISABLE_JIT=1, where numpy sees the wrap
        feistel(places, np.uint64(size), np.uint64(half), _round_keys(key), permuted)
    return permuted


def stream_key(seed: int, source: int, epoch: int) -> int:
    """The key of one pass over one source, an unsigned 64-bit integer.

    Args:
        seed: of the run, 0 .. 2^64 - 1.
        source: index of the source in the chain's list, which only grows.
        epoch: which pass, 0 first.
    """
    key = _mix_int(seed + _GAMMA)
    key = _mix_int((key ^ source) + _GAMMA)
    return _mix_int((key ^ epoch) + _GAMMA)


def _round_keys(key: int) -> np.ndarray:
    """The first outputs of splitmix64 seeded with `key`, uint64 (ROUNDS,)."""
    return np.array([_mix_int(key + (i + 1) * _GAMMA) for i in range(ROUNDS)], dtype=np.uint64)


def _mix_int(word: int) -> int:
    """`mix` on a Python integer, taken modulo 2^64."""
    word &= _WORD
    word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9 & _WORD
    word = (word ^ (word >> 27)) * 0x94D049BB133111EB & _WORD
    return word ^ (word >> 31)


@kernel
def mix(word: np.uint64) -> np.uint64:
    """The finaliser of splitmix64."""
    word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return word ^ (word >> np.uint64(31))


@kernel
def feistel(
    index: np.ndarray,
    size: np.uint64,
    half: np.uint64,
    round_keys: np.ndarray,
    permuted: np.ndarray,
) -> None:
    """Write the permuted `index`, int64 (n,), to `permuted`; a half has `half` bits.

    Everything between is uint64: mixed with int64, Numba would make it float64.
    """
    mask = (np.uint64(1) << half) - np.uint64(1)
    for i in range(len(index)):
        place = np.uint64(index[i])
        while True:
            left = place >> half
            right = place & mask
            for r in range(len(round_keys)):
                mixed = left ^ (mix(right + round_keys[r]) & mask)
                left = right
                right = mixed
            place = (left << half) | right
            if place < size:
                break
        permuted[i] = np.int64(place)
