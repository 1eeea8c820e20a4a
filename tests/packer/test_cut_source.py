"""Documents as pieces: long ones are cut, short and long ones go as the policy says."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from packer import cut_source as cut_module
from packer.source_lengths import SourceLengths
from packer.stream import Stream
from tests.packer.small_streams import rows, source, whole


def test_long_documents_are_cut_and_only_pieces_are_shuffled() -> None:
    # S = 4; documents of 3, 9 and 2 tokens: five pieces, each once, end to end in the stream.
    stream = Stream([source([3, 9, 2])], seed=1, context_length=4)
    pieces = whole(stream)
    assert sorted(rows(pieces)) == [
        (0, 0, 0, 0, 3),
        (0, 0, 1, 0, 4),
        (0, 0, 1, 4, 8),
        (0, 0, 1, 8, 9),
        (0, 0, 2, 0, 2),
    ]
    assert pieces.doc_tokens.tolist() == [[3, 9, 2][d] for d in pieces.doc_id]
    assert pieces.position.tolist() == (np.cumsum(pieces.tokens) - pieces.tokens).tolist()
    [cut] = stream.sources
    assert (cut.documents, cut.tokens, cut.pieces) == (3, 14, 5)
    assert cut.long_documents.tolist() == [1]


def test_the_pieces_of_a_giant_book_are_spread_over_the_epoch() -> None:
    lengths = [10] * 3000 + [10 * 1000] + [10] * 3000
    pieces = whole(Stream([source(lengths)], seed=3, context_length=10))
    book = np.flatnonzero(pieces.doc_id == 3000)
    assert len(book) == 1000
    assert np.diff(book).max() < 100  # every seventh piece is the book's; never far away
    quarters = np.bincount(book * 4 // len(pieces), minlength=4)
    assert quarters.min() > 200
    assert np.any(np.diff(pieces.doc_start[book]) < 0)  # and they do not run in order


def test_long_documents_in_every_scanned_block_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    lengths = [5, 1, 23, 4, 8, 30, 2, 2, 9, 17]
    expected = rows(whole(Stream([source(lengths)], seed=5, context_length=4)))
    monkeypatch.setattr(cut_module, "SCAN_DOCUMENTS", 3)
    assert rows(whole(Stream([source(lengths)], seed=5, context_length=4))) == expected


def test_lengths_may_be_a_read_only_map_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "lengths.u32"
    np.arange(1, 50, dtype="<u4").tofile(path)
    mapped = np.memmap(path, dtype="<u4", mode="r")
    got = whole(Stream([SourceLengths(lengths=mapped)], seed=2, context_length=20))
    assert rows(got) == rows(whole(Stream([source(list(range(1, 50)))], seed=2, context_length=20)))
    assert type(got.doc_tokens) is np.ndarray


POLICY_PICTURES = {
    # S = 4, min_tokens = 2; documents of 1, 2, 4, 5 and 10 tokens.
    "cut": (
        [(1, 0, 2), (2, 0, 4), (3, 0, 4), (3, 4, 5), (4, 0, 4), (4, 4, 8), (4, 8, 10)],
        [1, 1, 0, 0, 0, 0],
    ),
    "truncate": ([(1, 0, 2), (2, 0, 4), (3, 0, 4), (4, 0, 4)], [1, 1, 0, 0, 2, 7]),
    "drop": ([(1, 0, 2), (2, 0, 4)], [1, 1, 2, 15, 0, 0]),
}


@pytest.mark.parametrize("policy", POLICY_PICTURES)
def test_short_and_long_documents_go_as_the_policy_says(policy: str) -> None:
    expected, aside = POLICY_PICTURES[policy]
    stream = Stream([source([1, 2, 4, 5, 10], None, 2, 2, policy)], seed=0, context_length=4)
    pieces = whole(stream)
    for epoch in range(2):
        assert sorted(row[2:] for row in rows(pieces) if row[1] == epoch) == expected
    [cut] = stream.sources
    assert list(dataclasses.astuple(cut.set_aside)) == aside
    assert cut.tokens + aside[1] + aside[3] + aside[5] == 22


def test_a_truncated_document_ends_without_a_label() -> None:
    pieces = whole(Stream([source([10, 4], None, 1, 1, "truncate")], seed=0, context_length=4))
    assert pieces.num_targets.tolist() == [3, 3]
    assert pieces.doc_tokens.tolist() == [4, 4]


def test_a_minimum_above_the_context_leaves_long_documents_alone() -> None:
    stream = Stream([source([3, 5, 9], min_tokens=6)], seed=0, context_length=4)
    assert sorted(row[2:] for row in rows(whole(stream))) == [(2, 0, 4), (2, 4, 8), (2, 8, 9)]


def test_rare_documents_are_found_among_many_that_are_dropped() -> None:
    lengths = np.ones(300_000, np.uint32)
    lengths[[7, 150_000, 299_999]] = 50
    rare = SourceLengths(lengths=lengths, min_tokens=2, max_epochs=2)
    pieces = whole(Stream([rare], seed=1, context_length=64))
    assert sorted(rows(pieces)) == [
        (0, epoch, doc_id, 0, 50) for epoch in range(2) for doc_id in (7, 150_000, 299_999)
    ]


def test_a_source_of_which_nothing_is_left_is_refused() -> None:
    with pytest.raises(ValueError, match="no document of source 1 is left: of 3, 1 have fewer"):
        Stream([source([1]), source([1, 8, 9], None, 1, 2, "drop")], seed=0, context_length=4)


def test_a_document_without_tokens_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="document 2 of source 1 has 0 tokens"):
        Stream([source([1]), source([4, 5, 0, 0])], seed=0, context_length=8)
