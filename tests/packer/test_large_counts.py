"""Counts beyond 32 bits, and up to the end of 64: exact, or refused."""

from __future__ import annotations

import numpy as np
import pytest

from packer.cut_source import CutSource, SourceLengths
from packer.mixture import Mixer, integer_weights
from packer.packing.config import PackingConfig
from packer.packing.packer import MOST_STEP_WORK, Packer, PackingError
from packer.packing.whole import pack
from packer.plan import Pieces, Steps
from packer.stream import Stream
from packer.workload import Workload
from tests.packer.small_streams import rows, whole

LONGEST_DOCUMENT = (1 << 32) - 1


def test_lengths_of_32_bits_are_cut_and_added_up_exactly() -> None:
    lengths = np.full(3, LONGEST_DOCUMENT, np.uint32)
    context = 1 << 26
    stream = Stream([SourceLengths(lengths=lengths)], seed=1, context_length=context)
    (source,) = stream.sources
    assert source.tokens == 3 * LONGEST_DOCUMENT
    assert source.pieces == 3 * 64
    pieces = whole(stream)
    assert set(pieces.doc_tokens.tolist()) == {LONGEST_DOCUMENT}
    expected = [(0, 0, d, s, min(s + context, LONGEST_DOCUMENT))
                for d in range(3) for s in range(0, LONGEST_DOCUMENT, context)]  # fmt: skip
    assert sorted(rows(pieces)) == expected


def test_what_is_left_out_of_lengths_of_32_bits_is_counted_exactly() -> None:
    lengths = np.array([LONGEST_DOCUMENT, 3, LONGEST_DOCUMENT], np.uint32)
    for policy, counts in (
        ("truncate", (0, 0, 2, 2 * LONGEST_DOCUMENT - 16)),
        ("drop", (2, 2 * LONGEST_DOCUMENT, 0, 0)),
    ):
        settings = SourceLengths(lengths=lengths, longer_than_context=policy)
        aside = CutSource(settings, number=0, seed=0, context_length=8).set_aside
        found = (aside.too_long_documents, aside.too_long_tokens,
                 aside.truncated_documents, aside.truncated_tokens)  # fmt: skip
        assert found == counts


def test_a_mixture_goes_on_the_same_at_the_end_of_64_bits() -> None:
    def picks(mixer: Mixer) -> list[int]:
        head, tail = np.array([0, 20, 40]), np.array([20, 40, 40])
        picked = np.empty(24, np.int64)
        sources = len(mixer.emitted_tokens)
        tokens = np.tile([5, 1 << 26, 9, 1], 10)
        assert mixer.pick(tokens, head[:sources], tail[:sources], picked)[0] == 24
        return picked.tolist()

    fresh = picks(Mixer(integer_weights([3, 1]), target_tokens=1 << 62))
    assert {slot // 20 for slot in fresh} == {0, 1}
    late = Mixer(integer_weights([3, 1]), target_tokens=1 << 62)
    late.emitted_tokens[:] = (3 << 58, 1 << 58)
    assert picks(late) == fresh
    late = Mixer(integer_weights([3, 1, 4]), target_tokens=1 << 62)
    late.emitted_tokens[:] = (3 << 58, 1 << 58, 4 << 58)
    assert late.drop(2)  # quotas anew, from the totals
    assert picks(late) == fresh


def test_steps_are_numbered_beyond_32_bits() -> None:
    config = PackingConfig(num_micro_batches=2, context_length=8, max_tokens=10)
    pieces, workload = Pieces.from_lengths(np.array([8, 3, 5, 2] * 20)), Workload(crossover=5)
    plain = pack("concat", pieces, config, workload).steps
    late = Packer("concat", config, workload, first_step=1 << 33).push(pieces, final=True)
    assert plain is not None
    assert late is not None
    assert late.first_step == 1 << 33
    assert (late.piece_step - (1 << 33)).tolist() == plain.piece_step.tolist()
    np.testing.assert_array_equal(late.pieces.position, plain.pieces.position)


def test_displacement_is_exact_at_the_end_of_a_stream_of_62_bits() -> None:
    intake, last = 1 << 22, (1 << 62) - (1 << 22)
    position = np.array([last, last + 7, last + 9], np.int64)
    few = np.array([7, 2, 1], np.int64)
    zeros = np.zeros(3, np.int64)
    pieces = Pieces(source=zeros, epoch=zeros, doc_id=zeros, doc_start=zeros, doc_stop=few,
                    doc_tokens=few, position=position)  # fmt: skip
    arrival = last // intake
    steps = Steps(
        first_step=arrival - 1,
        num_micro_batches=1,
        pieces=pieces,
        row_offsets=np.array([0, 1, 2, 3]),
        row_workload=np.ones(3, np.int64),
    )
    assert arrival > 1 << 39
    assert steps.displacement(intake).tolist() == [1, 0, 1]


def test_a_step_whose_workload_leaves_64_bits_is_refused_before_it_is_packed() -> None:
    workload = Workload(crossover=1)
    fits = PackingConfig(num_micro_batches=63, context_length=1 << 20, max_tokens=1 << 20)
    Packer("reorder", fits, workload)
    longest = int(workload.of(np.array([1 << 20]))[0])
    assert 63 * longest < MOST_STEP_WORK <= 64 * longest
    with pytest.raises(PackingError, match=r"64 micro-batches of up to 1048576.*lower num_micro"):
        Packer("reorder", PackingConfig(num_micro_batches=64, context_length=1 << 20,
                                        max_tokens=1 << 20), workload)  # fmt: skip
