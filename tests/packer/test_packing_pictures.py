"""What each policy does, small enough to check by hand, and what the packer refuses."""

from __future__ import annotations

import logging

import numpy as np
import pytest

from packer.packing.config import PackingConfig
from packer.packing.packer import IntakeTooLarge, Packer, PackingError
from packer.packing.whole import pack
from packer.plan import Pieces
from tests.packer.small_plans import SQUARE, lengths_of


def packed(policy: str, lengths: list[int], **bounds: object) -> tuple[list[list[list[int]]], list]:
    config = PackingConfig(num_micro_batches=2, context_length=8, **bounds)  # pyright: ignore
    packing = pack(policy, Pieces.from_lengths(np.array(lengths)), config, SQUARE)
    return lengths_of(packing.steps), packing.tail.tokens.tolist()


def test_concat_cuts_at_every_s_tokens_and_keeps_the_rest_as_tail() -> None:
    # 3 5 | 3 5 cost 12 + 30 each: a tie, so the first of the stream comes first
    steps, tail = packed("concat", [3, 8, 6, 2], max_tokens=8)
    assert steps == [[[3, 5], [3, 5]]]
    assert tail == [1, 2]


def test_concat_says_where_in_its_document_each_part_lies() -> None:
    config = PackingConfig(num_micro_batches=2, context_length=4, max_tokens=4)
    packing = pack("concat", Pieces.from_lengths(np.array([2, 4, 4])), config, SQUARE)
    assert packing.steps is not None
    pieces = packing.steps.pieces
    # positions 0..3 hold document 0 and half of document 1, positions 4..7 the other halves
    assert pieces.doc_id.tolist() == [0, 1, 1, 2]
    assert pieces.doc_start.tolist() == [0, 0, 2, 0]
    assert pieces.doc_stop.tolist() == [2, 2, 4, 2]
    assert pieces.position.tolist() == [0, 2, 4, 6]
    assert (packing.tail.doc_start.tolist(), packing.tail.doc_stop.tolist()) == ([2], [4])
    assert packing.tail.position.tolist() == [8]


def test_concat_closes_a_micro_batch_at_max_pieces() -> None:
    steps, tail = packed(
        "concat", [2, 2, 2, 2, 2, 2, 1], max_tokens=8, max_pieces=2, intake_tokens=8
    )
    assert steps == [[[2, 2], [2, 2]]]
    assert tail == [2, 2, 1]


def test_concat_spreads_what_cannot_fill_a_last_step() -> None:
    # 9 tokens are a step of A = 8 but do not fill two micro-batches to 8
    steps, tail = packed("concat", [8, 1], max_tokens=8, intake_tokens=8)
    assert steps == [[[5], [3, 1]]]
    assert tail == []


def test_reorder_gives_each_piece_to_the_least_work_largest_first() -> None:
    # 8 costs 72; the rest, 20 + 6 + 6, goes to the other micro-batch; slots by falling work
    steps, tail = packed("reorder", [2, 2, 8, 4, 7], max_tokens=16)
    assert steps == [[[8], [2, 2, 4]]]
    assert tail == [7]


def test_reorder_moves_only_what_does_not_fit() -> None:
    # step 0 takes in 6 6 5; the 5 fits beside neither 6, and is tried before the later ones
    steps, tail = packed("reorder", [6, 6, 5, 2, 5, 5, 3], max_tokens=8)
    assert steps == [[[6], [6]], [[5, 3], [2, 5]]]
    assert tail == [5]


def test_wlb_holds_outliers_until_every_micro_batch_gets_one() -> None:
    steps, tail = packed("wlb", [8, 4, 4, 8, 4, 4, 1, 1, 6], max_tokens=12, thresholds=(8,))
    assert steps == [[[4], [4]], [[8, 4], [8, 4]]]
    assert tail == [1, 1, 6]


def test_wlb_keeps_lengths_of_different_queues_apart() -> None:
    # in step 1 both queues hold two, and 8 and 6 do not fit into 12: the longer pair goes first
    lengths = [8, 6, 1, 1, 6, 8, 1, 1, 1, 1]
    steps, tail = packed("wlb", lengths, max_tokens=12, thresholds=(6, 8))
    assert steps == [[[1], [1]], [[8, 1], [8, 1]]]
    assert tail == [6, 6, 1, 1]


def test_wlb_releases_an_outlier_in_time_for_its_bound() -> None:
    config = PackingConfig(
        num_micro_batches=2,
        context_length=8,
        max_tokens=16,
        thresholds=(8,),
        max_displacement=4,
    )
    pieces = Pieces.from_lengths(np.array([8] + [1] * 200))
    packing = pack("wlb", pieces, config, SQUARE)
    assert packing.steps is not None
    ran_in = int(packing.steps.piece_step[packing.steps.pieces.tokens == 8][0])
    assert ran_in == 3  # one step before the last that is allowed


def test_wlb_empties_its_queues_at_the_end() -> None:
    steps, tail = packed("wlb", [4, 4, 4, 4, 8, 4, 4], max_tokens=16, thresholds=(8,))
    assert steps == [[[4, 4], [4, 4]], [[8], [4, 4]]]
    assert tail == []


def test_wlb_as_printed_never_runs_a_full_piece_where_s_max_is_s() -> None:
    lengths = [8, 4, 4, 4, 4, 4, 4, 4, 4]
    printed, left = packed("wlb_printed", lengths, max_tokens=8)
    assert left.count(8) == 1
    assert all(8 not in slot for step in printed for slot in step)
    steps, _ = packed("wlb", lengths, max_tokens=8)
    assert steps[0][0] == [8]


def test_wlb_as_printed_refuses_a_step_with_an_empty_micro_batch() -> None:
    with pytest.raises(PackingError, match="micro-batch of step 0 empty"):
        packed("wlb_printed", [8, 8], max_tokens=8)


def test_steps_are_numbered_from_the_segments_first() -> None:
    config = PackingConfig(num_micro_batches=1, context_length=2, max_tokens=2)
    packer = Packer("reorder", config, SQUARE, first_step=40)
    pieces = Pieces.from_lengths(np.array([2, 2, 2]))
    first = packer.push(pieces)
    last = packer.push(Pieces.empty(), final=True)
    assert first is not None
    assert last is not None
    assert [*first.piece_step, *last.piece_step] == [40, 41, 42]
    assert len(packer.tail) == 0


def test_an_intake_that_steps_cannot_hold_is_refused_with_what_they_can() -> None:
    config = PackingConfig(num_micro_batches=4, context_length=64, max_tokens=64)
    pieces = Pieces.from_lengths(np.full(400, 33))
    with pytest.raises(
        IntakeTooLarge, match=r"take in 256 tokens and held 132.*max_tokens 64"
    ) as told:
        Packer("wlb", config, SQUARE).push(pieces, final=True)
    assert told.value.sustainable == 192  # three quarters: a few lean steps say little


def test_pack_lowers_the_intake_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    config = PackingConfig(num_micro_batches=4, context_length=64, max_tokens=64)
    pieces = Pieces.from_lengths(np.full(400, 33))
    with caplog.at_level(logging.WARNING):
        packing = pack("reorder", pieces, config, SQUARE)
    assert packing.config.intake_tokens == 132
    assert [record.getMessage()[-36:] for record in caplog.records] == [
        f"lower the intake to {tokens}, or raise max_tokens 64"[-36:] for tokens in (192, 144, 132)
    ]


def test_a_stream_that_needs_more_pieces_than_it_may_pull_forward_is_refused() -> None:
    config = PackingConfig(
        num_micro_batches=4, context_length=64, max_tokens=64, intake_tokens=8, max_displacement=2
    )
    with pytest.raises(PackingError, match=r"needs 4 pieces.*max_displacement 2"):
        pack("reorder", Pieces.from_lengths(np.full(40, 64)), config, SQUARE)


def test_pieces_out_of_stream_order_are_refused() -> None:
    config = PackingConfig(num_micro_batches=1, context_length=4, max_tokens=4)
    pieces = Pieces.from_lengths(np.array([1, 2, 3]))
    packer = Packer("reorder", config, SQUARE)
    with pytest.raises(ValueError, match="end to end"):
        packer.push(pieces.take(np.array([0, 2])))
    packer.push(pieces.take(slice(0, 1)))
    with pytest.raises(ValueError, match="the 1 stream tokens before"):
        packer.push(pieces.take(slice(0, 1)))


def test_a_piece_longer_than_the_context_is_refused() -> None:
    config = PackingConfig(num_micro_batches=1, context_length=4, max_tokens=8)
    with pytest.raises(ValueError, match=r"a piece of 5 tokens.*context_length 4"):
        pack("reorder", Pieces.from_lengths(np.array([5])), config, SQUARE)
    with pytest.raises(ValueError, match="a piece of 0 tokens"):
        pack("reorder", Pieces.from_lengths(np.array([0, 1])), config, SQUARE)


def test_nothing_may_follow_the_final_pieces() -> None:
    config = PackingConfig(num_micro_batches=1, context_length=4, max_tokens=8)
    packer = Packer("reorder", config, SQUARE)
    packer.push(Pieces.empty(), final=True)
    with pytest.raises(ValueError, match="after the final ones"):
        packer.push(Pieces.empty())


def test_an_unknown_policy_is_refused_with_those_known() -> None:
    with pytest.raises(PackingError, match="'first_fit'; known are concat, reorder, wlb"):
        Packer(
            "first_fit", PackingConfig(num_micro_batches=1, context_length=1, max_tokens=1), SQUARE
        )
