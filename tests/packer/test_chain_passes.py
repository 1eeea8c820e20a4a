"""A chain's next segment takes what earlier ones have not run: untouched documents, and remains."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packer.passes import EarlierEpoch, Remains
from packer.plan import Pieces
from packer.source_lengths import LONG_POLICIES, SourceLengths
from packer.stream import Stream
from tests import reference_stream as slow

Interval = tuple[int, int, int]
"""doc_id, start, stop."""


def earlier(begun: Sequence[int], left: Sequence[Interval], run_tokens: int) -> EarlierEpoch:
    bits = np.zeros(8, np.uint8)
    for doc_id in begun:
        bits[doc_id // 8] |= 1 << doc_id % 8
    doc_id, start, stop = np.array(left, np.int64).reshape(-1, 3).T
    return EarlierEpoch(begun=bits, doc_id=doc_id, start=start, stop=stop, run_tokens=run_tokens)


def source(
    lengths: Sequence[int],
    *epochs: EarlierEpoch,
    max_epochs: float = 1,
    min_tokens: int = 1,
    longer_than_context: str = "cut",
    number: int | None = None,
) -> SourceLengths:
    return SourceLengths(
        lengths=np.array(lengths, np.uint32),
        max_epochs=max_epochs,
        min_tokens=min_tokens,
        longer_than_context=longer_than_context,
        number=number,
        earlier=epochs,
    )


def rows(stream: Stream) -> list[slow.Piece]:
    pieces = Pieces.concatenate(list(stream.chunks()))
    columns = (pieces.source, pieces.epoch, pieces.doc_id, pieces.doc_start, pieces.doc_stop)
    return list(zip(*(column.tolist() for column in columns), strict=True))


# Documents of 3, 9, 2 and 6 tokens at S = 4. Of document 1 the tokens [4, 8) have run, document 2
# has run whole: [0, 4) and [8, 9) are left of the one, nothing of the other.
LENGTHS = [3, 9, 2, 6]
BEGUN = earlier([1, 2], [(1, 0, 4), (1, 8, 9)], run_tokens=6)


def test_what_is_left_is_untouched_documents_and_the_remains_of_begun_ones() -> None:
    stream = Stream([source(LENGTHS, BEGUN)], seed=1, context_length=4)
    assert sorted(rows(stream)) == [
        (0, 0, 0, 0, 3),
        (0, 0, 1, 0, 4),
        (0, 0, 1, 8, 9),
        (0, 0, 3, 0, 4),
        (0, 0, 3, 4, 6),
    ]


def test_remains_are_cut_at_the_new_length_from_where_they_begin() -> None:
    # [0, 4) and [5, 9) at S = 3: 5 is on no grid of the document.
    left = earlier([1, 2], [(1, 0, 4), (1, 5, 9)], run_tokens=3)
    stream = Stream([source(LENGTHS, left)], seed=1, context_length=3)
    assert [row[3:] for row in sorted(rows(stream)) if row[2] == 1] == [
        (0, 3), (3, 4), (5, 8), (8, 9)
    ]  # fmt: skip


def test_policies_are_asked_of_untouched_documents_alone() -> None:
    stream = Stream([source(LENGTHS, BEGUN, min_tokens=4, longer_than_context="drop")], seed=1,
                    context_length=6)  # fmt: skip
    assert sorted(rows(stream)) == [(0, 0, 1, 0, 4), (0, 0, 1, 8, 9), (0, 0, 3, 0, 6)]
    [cut] = stream.sources
    assert cut.set_aside.too_short_documents == 2  # of a fresh pass, whatever has run


def test_epochs_that_began_come_first_and_keep_their_numbers() -> None:
    done, untouched = earlier([0, 1, 2, 3], [], run_tokens=20), earlier([], [], run_tokens=0)
    stream = Stream(
        [source(LENGTHS, BEGUN, done, untouched, max_epochs=4)],
        seed=3,
        context_length=9,
    )
    found = rows(stream)
    epochs = [row[1] for row in found]
    assert epochs == sorted(epochs)
    assert {epoch: epochs.count(epoch) for epoch in set(epochs)} == {0: 4, 2: 4, 3: 4}
    selection = stream.chunks().selection()
    assert (selection.passes[0], selection.last_epoch[0]) == (1, 0)  # nothing read yet


def test_a_part_of_an_epoch_counts_what_has_run_of_it() -> None:
    # Half of 40 tokens are 20, of which 12 have run: 8 more, in pieces of 5, are one.
    lengths = [5] * 8
    half = earlier([0, 1, 2], [(2, 2, 5)], run_tokens=12)
    run = Stream([source(lengths, half, max_epochs=0.5)], seed=0, context_length=5).chunks()
    pieces = Pieces.concatenate(list(run))
    assert 3 < pieces.tokens.sum() <= 8
    selection = run.selection()
    assert selection.unselected_tokens.tolist() == [28 - pieces.tokens.sum()]


def test_nothing_left_is_refused_with_what_to_do() -> None:
    done = earlier([0, 1, 2, 3], [], run_tokens=20)
    with pytest.raises(ValueError, match=r"nothing of source 0 is left.*raise max_epochs"):
        Stream([source(LENGTHS, done)], seed=0, context_length=4)
    half = earlier([0, 1], [], run_tokens=12)
    with pytest.raises(ValueError, match=r"all that max_epochs 0.5 allows"):
        Stream([source(LENGTHS, half, max_epochs=0.5)], seed=0, context_length=4)


def test_a_source_keeps_its_number_in_the_chain() -> None:
    one, two = source([4] * 5, number=3), source([4] * 5, number=1)
    found = rows(Stream([one, two], seed=7, context_length=4))
    assert {row[0] for row in found} == {1, 3}
    alone = rows(Stream([source([4] * 5, number=3)], seed=7, context_length=4))
    assert [row for row in found if row[0] == 3] == alone


def test_labels_end_at_the_context_length_where_the_segment_truncates() -> None:
    # [0, 2) and [6, 9) are left of 9 tokens; S = 3. Behind token 3 nothing is a next token.
    left = earlier([0], [(0, 0, 2), (0, 6, 9)], run_tokens=4)
    stream = Stream([source([9], left, longer_than_context="truncate")], seed=0, context_length=3)
    pieces = Pieces.concatenate(list(stream.chunks()))
    by_start = dict(zip(pieces.doc_start.tolist(), pieces.num_targets.tolist(), strict=True))
    assert by_start == {0: 2, 6: 2}


def test_a_table_of_remains_is_in_order() -> None:
    remains = Remains.of(earlier([1], [(1, 0, 7), (1, 9, 10)], 3), context_length=3)
    assert remains.start.tolist() == [0, 3, 6, 9]
    assert remains.stop.tolist() == [3, 6, 7, 10]
    assert (remains.documents, remains.tokens) == (1, 8)
    with pytest.raises(ValueError, match="it must be uint8"):
        EarlierEpoch(
            begun=np.zeros(1, np.int64), doc_id=remains.doc_id, start=remains.start,
            stop=remains.stop, run_tokens=0,
        )  # fmt: skip


@st.composite
def begun_epochs(draw: st.DrawFn, lengths: list[int]) -> tuple[EarlierEpoch, slow.SlowEpoch]:
    """An epoch of which any tokens of any documents have run."""
    begun, left, run = set(), [], 0
    for doc_id, length in enumerate(lengths):
        has_run = draw(st.lists(st.booleans(), min_size=length, max_size=length))
        if not draw(st.booleans()) or not any(has_run):
            continue
        begun.add(doc_id)
        run += sum(has_run)
        edges = np.flatnonzero(np.diff([1, *has_run, 1]))
        left += [(doc_id, int(a), int(b)) for a, b in edges.reshape(-1, 2)]
    return earlier(sorted(begun), left, run), slow.SlowEpoch(begun, left, run)


@given(st.data(), st.integers(0, 2**64 - 1))
@settings(max_examples=60, deadline=None)
def test_what_is_left_equals_its_slow_twin(data: st.DataObject, seed: int) -> None:
    sources, twins = [], []
    for number in range(data.draw(st.integers(1, 2))):
        lengths = [*data.draw(st.lists(st.integers(1, 20), min_size=1, max_size=8)), 9]
        pairs = [data.draw(begun_epochs(lengths)) for _ in range(data.draw(st.integers(0, 3)))]
        epochs = data.draw(st.sampled_from([1, 2, 4, 0.5, 1.25, 2.75]))
        policy = data.draw(st.sampled_from(LONG_POLICIES))
        least = data.draw(st.sampled_from([1, 1, 9]))
        sources.append(source(lengths, *(fast for fast, _ in pairs), max_epochs=epochs,
                              min_tokens=least, longer_than_context=policy))  # fmt: skip
        twins.append(slow.SlowSource(lengths, number, Fraction(str(epochs)), least, policy,
                                     [twin for _, twin in pairs]))  # fmt: skip
    longest = data.draw(st.sampled_from([9, 10, 21]))
    pieces = [slow.all_pieces(twin, n, seed, longest) for n, twin in enumerate(twins)]
    try:
        stream = Stream(sources, seed=seed, context_length=longest)
    except ValueError:
        assert not all(pieces)
        return
    for twin, weight in zip(twins, stream.weights.tolist(), strict=True):
        twin.weight = weight
    expected = slow.stream(twins, seed=seed, longest=longest, target=None, stop=False)
    run = stream.chunks(data.draw(st.sampled_from([1, 3, 1000])))
    found = Pieces.concatenate(list(run))
    columns = (found.source, found.epoch, found.doc_id, found.doc_start, found.doc_stop)
    assert list(zip(*(column.tolist() for column in columns), strict=True)) == expected
    selection = run.selection()
    for number, twin in enumerate(twins):
        mine = [piece for piece in expected if piece[0] == number]
        last = max((piece[1] for piece in mine), default=-1)
        if last < 0:
            continue
        begun = [piece[1:] for piece in slow.epoch_pieces(twin, number, last, seed, longest)]
        in_last = [piece[1:] for piece in mine if piece[1] == last]
        assert selection.last_epoch[number] == last
        assert selection.passes[number] == len({piece[1] for piece in mine})
        assert selection.unselected_pieces[number] == len(begun) - len(in_last)
        assert selection.unselected_documents[number] == (
            len({piece[1] for piece in begun}) - len({piece[1] for piece in in_last})
        )
        assert selection.unselected_tokens[number] == (
            sum(stop - start for *_, start, stop in begun)
            - sum(stop - start for *_, start, stop in in_last)
        )
