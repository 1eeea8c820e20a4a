"""The document lengths of experiments: the same everywhere, and shaped like the figure."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from packer.lengths import BIN_COUNTS, WINDOW, fig3_lengths, splitmix64


def test_splitmix64_gives_the_published_sequence() -> None:
    """First outputs of the reference implementation (Vigna, splitmix64.c) for seed 1234567."""
    expected = [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]
    assert splitmix64(1234567, np.arange(5)).tolist() == expected


def test_the_first_ten_thousand_lengths_never_change() -> None:
    lengths = fig3_lengths(10_000, 0)
    assert lengths.dtype == np.int64
    digest = hashlib.sha256(lengths.astype("<i8").tobytes()).hexdigest()
    assert digest == "07f85cfebc49bb4b81620ef0fce45141b1176a564bef60ac52d8147272467357"


def test_a_document_does_not_depend_on_how_many_follow() -> None:
    np.testing.assert_array_equal(fig3_lengths(100, 5), fig3_lengths(1000, 5)[:100])
    assert not np.array_equal(fig3_lengths(100, 5), fig3_lengths(100, 6))


def test_the_shape_is_the_figures() -> None:
    lengths = fig3_lengths(500_000, 1)
    assert (lengths.min(), lengths.max()) == (1, WINDOW)
    counts, _ = np.histogram(lengths, bins=len(BIN_COUNTS), range=(0, WINDOW))
    expected = np.array(BIN_COUNTS) / sum(BIN_COUNTS) * len(lengths)
    assert np.all(np.abs(counts - expected) < 6 * np.sqrt(expected) + 1)
    first = lengths[lengths < WINDOW / len(BIN_COUNTS)]
    assert first.mean() == pytest.approx(944, rel=0.02)  # 950, cut off at the bin's end
    full_share = (lengths == WINDOW).sum() / (lengths > WINDOW * 19 // 20).sum()
    assert full_share == pytest.approx(0.9, abs=0.05)
    short_tokens = lengths[lengths < WINDOW // 2].sum() / lengths.sum()
    assert 0.75 < short_tokens < 0.80


def test_every_uniform_gives_a_length_in_its_bin() -> None:
    assert len(fig3_lengths(0, 0)) == 0
    assert fig3_lengths(1, 2**63).min() >= 1
