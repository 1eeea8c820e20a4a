"""Passes over a source: each has an order of its own, the last one may be a part."""

from __future__ import annotations

import pytest

from packer.plan import Pieces
from packer.stream import Stream
from tests.packer.small_streams import source, whole


def test_each_epoch_has_an_order_of_its_own() -> None:
    pieces = whole(Stream([source(list(range(1, 101)), max_epochs=3)], seed=0, context_length=100))
    passes = [pieces.doc_id[pieces.epoch == e].tolist() for e in range(3)]
    assert all(sorted(one) == list(range(100)) for one in passes)
    assert passes[0] != passes[1] != passes[2] != passes[0]
    assert pieces.epoch.tolist() == sorted(pieces.epoch.tolist())


@pytest.mark.parametrize(
    ("seed", "order", "taken"),
    [
        (46, [1, 0, 3, 2], [1, 0]),  # 3 + 7 = 10; 5 more were 15
        (86, [2, 3, 1, 0], [2]),  # 9; with 5 more it were 14, though the 3 after it would fit
        (121, [1, 2, 0, 3], [1, 2]),  # 3 + 9 = 12, exactly
    ],
)
def test_half_an_epoch_ends_before_the_piece_that_would_be_too_much(
    seed: int, order: list[int], taken: list[int]
) -> None:
    lengths = [7, 3, 9, 5]  # 24 tokens; the second pass may have 12 of them
    twice = Stream([source(lengths, max_epochs=2)], seed=seed, context_length=9)
    assert whole(twice).doc_id[4:].tolist() == order
    run = Stream([source(lengths, max_epochs=1.5)], seed=seed, context_length=9).chunks()
    pieces = Pieces.concatenate(list(run))
    assert pieces.doc_id[4:].tolist() == taken
    assert pieces.epoch.tolist() == [0] * 4 + [1] * len(taken)
    selection = run.selection()
    tokens = sum(lengths[doc_id] for doc_id in taken)
    assert selection.passes.tolist() == [2]
    assert selection.tokens.tolist() == [24 + tokens]
    assert selection.unselected_tokens.tolist() == [24 - tokens]
    assert selection.unselected_documents.tolist() == [4 - len(taken)]


def test_a_cut_document_may_be_in_a_part_of_an_epoch_in_part() -> None:
    # 40 pieces of 5 tokens, half of them one book's; a quarter of the pass is 10 pieces.
    lengths = [5] * 20 + [100]
    run = Stream([source(lengths, max_epochs=0.25)], seed=2, context_length=5).chunks()
    pieces = Pieces.concatenate(list(run))
    assert len(pieces) == 10
    book = int((pieces.doc_id == 20).sum())
    assert 0 < book < 10
    selection = run.selection()
    assert selection.unselected_pieces.tolist() == [30]
    assert selection.unselected_tokens.tolist() == [150]
    assert selection.unselected_documents.tolist() == [20 - (10 - book)]  # the book is not one


def test_fractions_are_decimals_and_may_come_to_nothing() -> None:
    for epochs, tokens in ((0.1, 1), (1.1, 11), (0.3, 3), (0.7, 7), (2.7, 27), (0.05, 0)):
        stream = Stream([source([1] * 10, max_epochs=epochs)], seed=0, context_length=1)
        assert len(whole(stream)) == tokens
    assert len(whole(Stream([source([9], max_epochs=0.9)], seed=0, context_length=9))) == 0
