"""Pictures of plans that give every rank a mirrored pair of chunks."""

from __future__ import annotations

from tests.packer.small_cp_plans import EVEN, chunks, picture, plan


def test_per_document_gives_every_rank_a_mirrored_pair_of_every_piece() -> None:
    got = plan([[4, 12]], 2, "per_document")
    assert picture(got, 0, [4, 12]) == "0110 000111111000"
    assert chunks(got, 0) == [
        (0, 0, 0, 1), (0, 0, 3, 4), (0, 1, 0, 3), (0, 1, 9, 12),
        (1, 0, 1, 3), (1, 1, 3, 9),
    ]  # fmt: skip
    # Exact causal work: rank 0 has rows 1, 4 and 1..3, 10..12; rank 1 has 2, 3 and 4..9.
    work = [sum(stop * (stop + 1) - start * (start + 1) for r, _, start, stop in chunks(got, 0)
                if r == rank) // 2 for rank in range(2)]  # fmt: skip
    assert work == [44, 44]


def test_per_sequence_gives_every_rank_a_mirrored_pair_of_the_sequence() -> None:
    got = plan([[4, 12]], 2, "per_sequence")
    assert picture(got, 0, [4, 12]) == "0000 111111110000"
    assert chunks(got, 0) == [(0, 0, 0, 4), (0, 1, 8, 12), (1, 1, 0, 8)]
    work = [10 + 9 + 10 + 11 + 12, sum(range(1, 9))]
    assert work == [52, 36]  # the mirrored pair is not even where pieces begin anew


def test_per_document_deals_the_remainder_on_from_piece_to_piece() -> None:
    # Slots 0 1 2 3 belong to ranks 0 1 1 0. Three pieces of 5: the odd token goes to slots 0, 1, 2.
    assert picture(plan([[5, 5, 5]], 2, "per_document"), 0, [5, 5, 5]) == "00110 01110 01110"
    # 7 = 4 + 3 takes slots 0, 1, 2, so the next 7 goes on with slots 3, 0, 1.
    assert picture(plan([[7, 7]], 2, "per_document"), 0, [7, 7]) == "0011110 0011100"


def test_each_micro_batch_starts_its_own_deal() -> None:
    together = plan([[1], [1], [1, 1, 1]], 2, "per_document")
    assert [picture(together, row, pieces) for row, pieces in enumerate([[1], [1], [1, 1, 1]])] == [
        "0",
        "0",
        "0 1 1",
    ]


def test_fewer_tokens_than_ranks_leave_ranks_without_work() -> None:
    for strategy in EVEN:
        got = plan([[2, 1]], 8, strategy)
        assert picture(got, 0, [2, 1]) in ("01 2", "12 0")
        assert (got.predicted[0] > 0).tolist() == [True] * 3 + [False] * 5


def test_one_rank_holds_whole_pieces() -> None:
    for strategy in EVEN:
        assert chunks(plan([[300, 1, 7]], 1, strategy), 0) == [
            (0, 0, 0, 300), (0, 1, 0, 1), (0, 2, 0, 7)
        ]  # fmt: skip
