"""The shuffle is a bijection of any size, keyed, computed, and looks like one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packer.permutation import LARGEST_SIZE, permute, stream_key
from tests import reference_stream as slow

KEYS = st.integers(0, 2**64 - 1)


def whole(size: int, key: int) -> np.ndarray:
    return permute(np.arange(size), size=size, key=key)


@pytest.mark.parametrize("key", [0, 1, 2**63, 2**64 - 1, 0x0123456789ABCDEF])
def test_every_size_to_300_is_a_bijection(key: int) -> None:
    for size in range(1, 301):
        assert np.array_equal(np.sort(whole(size, key)), np.arange(size)), size


@given(size=st.integers(1, 5000), key=KEYS)
@settings(max_examples=50, deadline=None)
def test_any_size_and_key_is_a_bijection(size: int, key: int) -> None:
    assert np.array_equal(np.sort(whole(size, key)), np.arange(size))


@given(data=st.data(), size=st.integers(1, LARGEST_SIZE), key=KEYS)
@settings(max_examples=200, deadline=None)
def test_kernel_equals_python_integers_at_every_scale(
    data: st.DataObject, size: int, key: int
) -> None:
    index = data.draw(st.lists(st.integers(0, size - 1), min_size=1, max_size=5))
    expected = [slow.permuted(i, size, key) for i in index]
    assert permute(np.array(index), size=size, key=key).tolist() == expected


def test_a_shuffle_that_is_known_stays() -> None:
    # Changing any of these changes every plan ever made.
    assert whole(10, stream_key(7, 0, 0)).tolist() == [6, 1, 4, 7, 3, 5, 9, 8, 0, 2]
    huge = permute(np.array([0, 1, 10**12]), size=10**12 + 1, key=1)
    assert huge.tolist() == [785296151693, 522861283703, 318972753378]


def test_walking_the_cycle_did_occur() -> None:
    # 65 places live in a domain of 256: three of four values must be put through again.
    size, key = 65, 3
    places = set(whole(256, key).tolist())
    assert len(places) == 256
    assert whole(256, key)[:size].max() >= size
    assert whole(size, key).max() < size


def test_small_sources_reach_every_order() -> None:
    for size, orders in ((2, 2), (3, 6), (4, 24)):
        seen = {tuple(whole(size, stream_key(seed, 0, 0)).tolist()) for seed in range(400)}
        assert len(seen) == orders


def test_places_are_uniform_and_neighbours_are_parted() -> None:
    size = 1000
    shuffles = np.array([whole(size, stream_key(seed, 1, 2)) for seed in range(400)])  # (400, 1000)
    # The mean place of an index over 400 keys: 499.5 with a standard error of 14.4.
    assert np.abs(shuffles.mean(axis=0) - 499.5).max() < 5 * 14.4
    # Neighbours lie a third of the size apart on average, as two independent places do.
    assert np.abs(np.diff(shuffles, axis=1)).mean() == pytest.approx(size / 3, rel=0.02)
    ascending = (np.diff(shuffles, axis=1) > 0).mean()
    assert ascending == pytest.approx(0.5, abs=0.01)


def test_epochs_sources_and_seeds_have_keys_of_their_own() -> None:
    keys = {
        stream_key(seed, source, epoch)
        for seed in (0, 1, 2**63 - 1, 2**64 - 1)
        for source in range(20)
        for epoch in range(20)
    }
    assert len(keys) == 4 * 20 * 20
    assert all(0 <= key < 2**64 for key in keys)
    assert stream_key(5, 3, 2) == slow.key_of(5, 3, 2)


def test_any_integer_type_read_only_or_not_gives_int64() -> None:
    expected = whole(200, 9)
    for dtype in (np.uint8, np.int32, np.uint32, np.int64):
        index = np.arange(200, dtype=dtype)
        index.flags.writeable = False
        got = permute(index, size=200, key=9)
        assert got.dtype == np.int64
        assert np.array_equal(got, expected)
    assert permute(np.empty(0, np.int64), size=1, key=0).shape == (0,)


@pytest.mark.parametrize(
    ("index", "size", "key", "message"),
    [
        ([0], 0, 0, "size is 0"),
        ([0], LARGEST_SIZE + 1, 0, "size is"),
        ([0], 1, -1, "unsigned 64-bit"),
        ([0], 1, 2**64, "unsigned 64-bit"),
        ([0, 5], 5, 0, r"outside \[0, 5\)"),
        ([-1], 5, 0, r"outside \[0, 5\)"),
    ],
)
def test_nonsense_is_refused(index: list[int], size: int, key: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        permute(np.array(index), size=size, key=key)
