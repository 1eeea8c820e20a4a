"""Documents before the cut: parts of windows with the figure's counts."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from packer.lengths import BIN_COUNTS, WINDOW
from packer.window_lengths import document_counts, fig3_stream_lengths, uncut_lengths


def test_parts_have_the_figures_counts() -> None:
    lengths = fig3_stream_lengths(600_000, 1)
    counts, _ = np.histogram(lengths, bins=len(BIN_COUNTS), range=(0, WINDOW))
    expected = np.array(BIN_COUNTS) / sum(BIN_COUNTS) * len(lengths)
    spread = np.sqrt(expected)
    # the middle bins' counts are below what cuts alone leave, all by less than the reading's error
    assert np.all(np.abs(counts - expected) < 5 * spread + 10 * expected[-1] / BIN_COUNTS[-1])
    full = np.count_nonzero(lengths == WINDOW) / len(lengths) * sum(BIN_COUNTS)
    assert full == pytest.approx(97, abs=10)
    short_tokens = lengths[lengths < WINDOW // 2].sum() / lengths.sum()
    assert 0.75 < short_tokens < 0.80


def test_parts_are_the_documents_cut_at_borders() -> None:
    documents, parts = uncut_lengths(5000, 3), fig3_stream_lengths(5000, 3)
    assert documents.max() > 2 * WINDOW
    assert parts.sum() == documents.sum()
    ends = np.cumsum(parts)
    borders = np.arange(1, ends[-1] // WINDOW + 1) * WINDOW
    assert set(ends) == set(np.cumsum(documents)) | set(borders)
    assert np.all(np.diff(ends) > 0)


def test_counts_before_the_cut_are_worked_out_from_the_last_bin_down() -> None:
    counts = document_counts()
    assert counts[-1] == 108  # 10.8 parts in the last bin beside the spike are two twentieths
    assert counts[-2] == 0  # (10.8 - 10.8) / 0.025
    assert counts[-3] == 69  # (16 - 10.8) / 0.075
    assert counts[0] == pytest.approx(BIN_COUNTS[0], rel=0.03)


def test_the_first_documents_never_change() -> None:
    lengths = uncut_lengths(10_000, 0)
    digest = hashlib.sha256(lengths.astype("<i8").tobytes()).hexdigest()
    assert digest == "ea50007c379865769c7adb7255112cc50dac21a41ed866978ccc879d1c97aaf6"
    np.testing.assert_array_equal(uncut_lengths(100, 5), uncut_lengths(1000, 5)[:100])
    assert len(fig3_stream_lengths(0, 0)) == 0
