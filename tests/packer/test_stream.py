"""The stream holds every selected piece once, in quotas exact at every point of it."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packer import cut_source as cut_module
from packer import stream as stream_module
from packer.cut_source import SourceLengths
from packer.mixture import WEIGHT_SUM, integer_weights
from packer.plan import Pieces
from packer.stream import Selection, Stream
from tests import reference_stream as slow


def source(
    lengths: Sequence[int],
    weight: float | None = None,
    max_epochs: float = 1,
    min_tokens: int = 1,
    longer_than_context: str = "cut",
) -> SourceLengths:
    array = np.array(lengths, dtype=np.uint32)
    array.flags.writeable = False
    return SourceLengths(
        lengths=array,
        weight=weight,
        max_epochs=max_epochs,
        min_tokens=min_tokens,
        longer_than_context=longer_than_context,
    )


def whole(stream: Stream, num_pieces: int = 1 << 10) -> Pieces:
    return Pieces.concatenate(list(stream.chunks(num_pieces)))


def rows(pieces: Pieces) -> list[slow.Piece]:
    columns = (pieces.source, pieces.epoch, pieces.doc_id, pieces.doc_start, pieces.doc_stop)
    return list(zip(*(column.tolist() for column in columns), strict=True))


LENGTHS = st.lists(st.one_of(st.integers(1, 9), st.integers(1, 60)), min_size=1, max_size=30)
EPOCHS = st.sampled_from([1, 2, 3, 0.25, 0.7, 1.1, 1.5, 2.999])
LONGEST_KEPT = 20
"""Every drawn source has a document of so many tokens, which no policy leaves out."""


@st.composite
def mixtures(draw: st.DrawFn) -> list[SourceLengths]:
    number = draw(st.integers(1, 4))
    weighted = draw(st.booleans())
    weights = st.sampled_from([0.001, 0.3, 0.999, 1.0, 7.0])
    return [
        source(
            [*draw(LENGTHS), LONGEST_KEPT],
            draw(weights) if weighted else None,
            draw(EPOCHS),
            draw(st.sampled_from([1, 1, 3, LONGEST_KEPT])),
            draw(st.sampled_from(cut_module.LONG_POLICIES)),
        )
        for _ in range(number)
    ]


def slow_sources(sources: Sequence[SourceLengths], stream: Stream) -> list[slow.SlowSource]:
    return [
        slow.SlowSource(
            s.lengths.tolist(),
            int(weight),
            Fraction(str(s.max_epochs)),
            s.min_tokens,
            s.longer_than_context,
        )
        for s, weight in zip(sources, stream.weights, strict=True)
    ]


# --- one source ----------------------------------------------------------------------------------


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


def test_each_epoch_has_an_order_of_its_own() -> None:
    pieces = whole(Stream([source(list(range(1, 101)), max_epochs=3)], seed=0, context_length=100))
    passes = [pieces.doc_id[pieces.epoch == e].tolist() for e in range(3)]
    assert all(sorted(one) == list(range(100)) for one in passes)
    assert passes[0] != passes[1] != passes[2] != passes[0]
    assert pieces.epoch.tolist() == sorted(pieces.epoch.tolist())


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


# --- mixing --------------------------------------------------------------------------------------


def test_the_source_furthest_behind_its_quota_is_next() -> None:
    # Pieces of one token at 3 : 1. Nobody is behind at first, so source 0 by order; then
    # source 1 is 1/4 behind, and so on: 0 1 0 0, again and again.
    stream = Stream(
        [source([1] * 9, weight=3.0), source([1] * 3, weight=1.0)], seed=0, context_length=1
    )
    assert whole(stream).source.tolist() == [0, 1, 0, 0] * 3


def test_stop_ends_the_stream_at_the_turn_of_the_first_source_that_has_nothing_left() -> None:
    sources = [source([1] * 9, weight=1.0), source([1] * 3, weight=1.0)]
    stream = Stream(sources, seed=0, context_length=1, at_source_end="stop")
    assert whole(stream).source.tolist() == [0, 1, 0, 1, 0, 1, 0]


def test_drop_goes_on_with_the_rest_at_their_old_ratio() -> None:
    sources = [
        source([1] * 40, weight=2.0), source([1] * 3, weight=4.0), source([1] * 20, weight=1.0)
    ]  # fmt: skip
    picked = whole(Stream(sources, seed=0, context_length=1, at_source_end="drop")).source
    assert Counter(picked.tolist()) == {0: 40, 1: 3, 2: 20}
    after = picked[int(np.flatnonzero(picked == 1)[-1]) + 3 :].tolist()
    assert after[:30].count(0) == 20
    assert after[:30].count(2) == 10


def test_without_weights_sources_run_out_together() -> None:
    rng = np.random.default_rng(0)
    sources = [source(rng.integers(1, 50, size).tolist()) for size in (4000, 400, 40)]
    pieces = whole(Stream(sources, seed=1, context_length=32))
    ends = [int(pieces.position[pieces.source == s].max()) for s in range(3)]
    total = int(pieces.tokens.sum())
    # The smallest has a piece about every total / 60 tokens, so all end within a few of those.
    assert min(ends) > 0.95 * total
    assert total == sum(int(s.lengths.sum()) for s in sources)


def test_the_target_is_never_exceeded_and_nearly_met() -> None:
    everything = whole(Stream([source([7, 3, 9, 5, 1, 8])], seed=4, context_length=6))
    for target in range(1, 40):
        limited = Stream(
            [source([7, 3, 9, 5, 1, 8])], seed=4, context_length=6, target_tokens=target
        )
        pieces = whole(limited)
        count = len(pieces)
        assert rows(pieces) == rows(everything)[:count]  # a prefix
        assert pieces.tokens.sum() <= target
        if count < len(everything):
            assert pieces.tokens.sum() + everything.tokens[count] > target


def harmonic(first: int, last: int) -> Fraction:
    return sum((Fraction(1, k) for k in range(first, last + 1)), Fraction(0))


def check_quotas(
    pieces: Pieces, weights: np.ndarray, longest: int, *, stop: bool
) -> tuple[np.ndarray, int]:
    """Check the bounds of packer/mixture.py after every piece.

    A source has dropped out where it is furthest behind and still not next.

    Returns:
        The furthest behind and ahead, (2, sources), and how many sources have dropped out.
    """
    count = len(weights)
    emitted = [0] * count
    left = list(range(count))
    furthest = np.zeros((2, count), np.int64)

    def deficits() -> dict[int, Fraction]:
        total, weight = sum(emitted[i] for i in left), sum(int(weights[i]) for i in left)
        return {i: Fraction(int(weights[i]) * total, weight) - emitted[i] for i in left}

    def check() -> None:
        dropped = count - len(left)
        behind = (dropped + 1) * harmonic(dropped + 1, count - 1) * longest
        for i, deficit in deficits().items():
            assert -last[i] <= deficit <= behind
            furthest[0, i] = max(furthest[0, i], math.ceil(deficit))
            furthest[1, i] = max(furthest[1, i], math.ceil(-deficit))

    last = [0] * count
    for number, tokens in zip(pieces.source.tolist(), pieces.tokens.tolist(), strict=True):
        while (turn := max(left, key=lambda i: (deficits()[i], -i))) != number:
            assert not stop
            left.remove(turn)
            check()
        emitted[number] += tokens
        last[number] = tokens
        check()
    return furthest, count - len(left)


EXTREME = [
    [0.001, 0.999],
    [0.999, 0.001],
    [1e-9, 1.0],
    [1e-300, 1e300],
    [1, 1],
    [0.7, 0.2, 0.1],
    [5, 1, 1, 1, 1],
    [1e-6, 1e-3, 1, 1e3],
]


@given(
    weights=st.sampled_from(EXTREME),
    seed=st.integers(0, 2**63 - 1),
    stop=st.booleans(),
    data=st.data(),
)
@settings(max_examples=100, deadline=None)
def test_quotas_hold_along_the_whole_stream(
    weights: list[float], seed: int, stop: bool, data: st.DataObject
) -> None:
    one = st.lists(st.integers(1, 60), min_size=1, max_size=1)
    epochs = st.sampled_from([1, 2, 50, 0.5, 7.25])
    sources = [
        source(data.draw(st.one_of(one, LENGTHS)), weight, data.draw(epochs)) for weight in weights
    ]
    stream = Stream(
        sources,
        seed=seed,
        context_length=16,
        target_tokens=1500,
        at_source_end="stop" if stop else "drop",
    )
    run = stream.chunks(64)
    pieces = Pieces.concatenate(list(run))
    furthest, _ = check_quotas(pieces, stream.weights, 16, stop=stop)
    selection = run.selection()
    found = np.stack([selection.behind_tokens, selection.ahead_tokens])
    # The twin learns of a drop only when somebody else is next, so not of those at the very end.
    assert np.all(found >= furthest)
    if stop:
        assert found.tolist() == furthest.tolist()


def test_quotas_hold_while_sources_drop_out_one_by_one() -> None:
    rng = np.random.default_rng(3)
    drops = 0
    for seed in range(40):
        count = int(rng.integers(3, 7))
        sources = [
            source(rng.choice([1, 7, 60], size=rng.integers(1, 12)).tolist(), weight)
            for weight in rng.choice([1.0, 1.0, 2.0, 9.0], size=count).tolist()
        ]
        stream = Stream(sources, seed=seed, context_length=60, at_source_end="drop")
        _, dropped = check_quotas(whole(stream), stream.weights, 60, stop=False)
        drops += dropped
    assert drops > 60


def test_how_far_sources_were_from_their_quotas_is_counted() -> None:
    # Four equal sources, pieces of 60 tokens: after 0 its three peers are 15 behind, it is 45
    # ahead; after 1 the other two are 30 behind, after 2 the last one 45.
    run = Stream(
        [source([60] * 4, weight=1.0) for _ in range(4)], seed=0, context_length=60
    ).chunks()
    assert Pieces.concatenate(list(run)).source.tolist() == [0, 1, 2, 3] * 4
    selection = run.selection()
    assert selection.behind_tokens.tolist() == [0, 15, 30, 45]
    assert selection.ahead_tokens.tolist() == [45, 30, 15, 0]


def test_a_share_of_a_thousandth_is_met_to_the_piece() -> None:
    rng = np.random.default_rng(1)
    sources = [
        source(rng.integers(1, 400, 20_000).tolist(), weight=0.999, max_epochs=9),
        source([3, 1, 2], weight=0.001, max_epochs=9_000),  # tiny, many epochs
    ]
    stream = Stream(sources, seed=0, context_length=256, target_tokens=10_000_000)
    run = stream.chunks()
    pieces = Pieces.concatenate(list(run))
    small = np.cumsum(pieces.tokens * (pieces.source == 1))
    total = np.cumsum(pieces.tokens)
    assert total[-1] > 10_000_000 - 256
    assert np.abs(small - total * (stream.weights[1] / WEIGHT_SUM)).max() <= 256
    assert int(pieces.epoch[pieces.source == 1].max()) > 1600
    assert int(pieces.epoch[pieces.source == 0].max()) == 2  # the big one went round too


@given(mixtures(), st.integers(0, 2**64 - 1), st.booleans(), st.data())
@settings(max_examples=120, deadline=None)
def test_stream_equals_its_slow_twin(
    sources: list[SourceLengths], seed: int, stop: bool, data: st.DataObject
) -> None:
    target = data.draw(st.one_of(st.none(), st.integers(1, 500)))
    longest = data.draw(st.sampled_from([LONGEST_KEPT, LONGEST_KEPT + 7]))
    stream = Stream(
        sources,
        seed=seed,
        context_length=longest,
        target_tokens=target,
        at_source_end="stop" if stop else "drop",
    )
    twins = slow_sources(sources, stream)
    expected = slow.stream(twins, seed=seed, longest=longest, target=target, stop=stop)
    run = stream.chunks(data.draw(st.sampled_from([1, 2, 7, 100, 5000])))
    pieces = Pieces.concatenate(list(run))
    assert rows(pieces) == expected
    check_selection(run.selection(), stream, expected, twins)


def check_selection(
    selection: Selection,
    stream: Stream,
    expected: list[slow.Piece],
    twins: Sequence[slow.SlowSource],
) -> None:
    """Selected, set aside and unselected are all there is, in every pass; nothing else is lost."""
    for number, (twin, cut) in enumerate(zip(twins, stream.sources, strict=True)):
        mine = [piece for piece in expected if piece[0] == number]
        passes = max([epoch + 1 for _, epoch, *_ in mine], default=1)
        assert selection.passes[number] == passes
        assert selection.pieces[number] == len(mine)
        assert selection.tokens[number] == sum(stop - start for *_, start, stop in mine)
        aside = cut.set_aside
        tokens = aside.too_short_tokens + aside.too_long_tokens + aside.truncated_tokens
        assert passes * sum(twin.lengths) == (
            selection.tokens[number] + selection.unselected_tokens[number] + passes * tokens
        )
        last = {doc_id for _, epoch, doc_id, *_ in mine if epoch == passes - 1}
        documents = len(last) + int(selection.unselected_documents[number])
        documents += aside.too_short_documents + aside.too_long_documents
        assert documents == len(twin.lengths)
        assert passes * cut.pieces == len(mine) + selection.unselected_pieces[number]
        assert dataclasses.asdict(aside) == slow_aside(twin, stream.context_length)


def slow_aside(twin: slow.SlowSource, longest: int) -> dict[str, int]:
    short = [length for length in twin.lengths if length < twin.min_tokens]
    long = [length for length in twin.lengths if length >= max(twin.min_tokens, longest + 1)]
    dropped = long if twin.longer_than_context == "drop" else []
    truncated = long if twin.longer_than_context == "truncate" else []
    return {
        "too_short_documents": len(short),
        "too_short_tokens": sum(short),
        "too_long_documents": len(dropped),
        "too_long_tokens": sum(dropped),
        "truncated_documents": len(truncated),
        "truncated_tokens": sum(length - longest for length in truncated),
    }


def test_the_stream_does_not_depend_on_chunks_or_queues(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(2)
    sources = [source(rng.integers(1, 300, 3000).tolist(), w, 1.9) for w in (1.0, 2.0, 0.1)]
    sources.append(source(rng.integers(1, 300, 3000).tolist(), 1.5, 2.5, 250, "truncate"))
    stream = Stream(sources, seed=9, context_length=128)
    expected = rows(whole(stream, 1 << 17))
    assert len(expected) > 18_000
    assert max(row[4] - row[3] for row in expected) == 128
    for num_pieces in (1 << 10, 1000, 4097):
        chunks = list(stream.chunks(num_pieces))
        assert all(len(chunk) == num_pieces for chunk in chunks[:-1])
        assert rows(Pieces.concatenate(chunks)) == expected
    monkeypatch.setattr(stream_module, "SMALLEST_QUEUE", 5)
    monkeypatch.setattr(stream_module, "LARGEST_QUEUE", 7)
    assert rows(whole(stream)) == expected


def test_each_call_of_chunks_starts_anew() -> None:
    stream = Stream([source(list(range(1, 30)))], seed=0, context_length=8)
    first = stream.chunks(4)
    begun = [next(first), next(first)]
    assert rows(Pieces.concatenate([*begun, *first])) == rows(whole(stream))
    assert list(first) == []


@pytest.mark.parametrize("at_source_end", ["stop", "drop"])
def test_totals_beyond_32_bits_stay_exact(at_source_end: str) -> None:
    sources = [
        source([1 << 31] * 20, weight=1.0),
        source([1 << 20] * 50, weight=1e-3, max_epochs=5),
        source([1 << 29] * 9, weight=0.1, max_epochs=2),
    ]
    stream = Stream(sources, seed=0, context_length=1 << 26, at_source_end=at_source_end)
    pieces = whole(stream)
    assert int(pieces.position[-1]) > 1 << 35
    twins = slow_sources(sources, stream)
    stop = at_source_end == "stop"
    assert rows(pieces) == slow.stream(twins, seed=0, longest=1 << 26, target=None, stop=stop)


# --- parts of epochs ---------------------------------------------------------------------------


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


# --- documents that are not taken whole ----------------------------------------------------------


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


# --- weights and errors --------------------------------------------------------------------------


@given(st.lists(st.floats(1e-12, 1e12), min_size=1, max_size=50))
def test_integer_weights_sum_exactly_and_leave_nobody_out(weights: list[float]) -> None:
    integers = integer_weights(weights)
    assert integers.dtype == np.int64
    assert integers.sum() == WEIGHT_SUM
    assert integers.min() >= 1
    total = sum(Fraction(str(weight)) for weight in weights)
    shares = [Fraction(str(weight)) * WEIGHT_SUM / total for weight in weights]
    if min(shares) >= 1:
        assert all(abs(i - s) < 1 for i, s in zip(integers.tolist(), shares, strict=True))


def test_integer_weights_give_what_is_left_to_the_largest_remainders_then_by_order() -> None:
    third = WEIGHT_SUM // 3
    assert integer_weights([1, 1, 1]).tolist() == [third + 1, third, third]
    assert integer_weights([1, 2**40]).tolist() == [1, WEIGHT_SUM - 1]
    assert integer_weights([5]).tolist() == [WEIGHT_SUM]


@given(
    parts=st.lists(st.integers(1, 999), min_size=1, max_size=9),
    unit=st.sampled_from(["e-3", "e-2", "e0", "e2", "e300", "e-300"]),
)
def test_weights_in_another_unit_are_the_same(parts: list[int], unit: str) -> None:
    scaled = [float(f"{part}{unit}") for part in parts]
    assert integer_weights(scaled).tolist() == integer_weights(parts).tolist()


def test_weights_of_any_magnitude_are_exact() -> None:
    assert integer_weights([0.3, 0.7]).tolist() == integer_weights([30, 70]).tolist()
    assert integer_weights([5e-324, 1.7e308]).tolist() == [1, WEIGHT_SUM - 1]
    assert integer_weights([10**30, 1.0]).tolist() == [WEIGHT_SUM - 1, 1]


def test_a_document_without_tokens_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="document 2 of source 1 has 0 tokens"):
        Stream([source([1]), source([4, 5, 0, 0])], seed=0, context_length=8)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sources": []}, "without sources"),
        ({"sources": [source([1], 1.0), source([1])]}, "all or none"),
        ({"seed": -1}, "seed is -1"),
        ({"context_length": 0}, "context_length is 0"),
        ({"context_length": (1 << 26) + 1}, "context_length is 67108865"),
        ({"sources": [source([1])] * 128, "context_length": 1 << 26}, "128 sources"),
        ({"target_tokens": 0}, "target_tokens is 0"),
        ({"at_source_end": "repeat"}, '"stop" or "drop"'),
    ],
)
def test_bad_arguments_of_a_stream_are_refused(change: dict[str, object], message: str) -> None:
    arguments: dict[str, object] = {"sources": [source([1, 2])], "seed": 0, "context_length": 4}
    arguments |= change
    with pytest.raises(ValueError, match=message):
        Stream(arguments.pop("sources"), **arguments)  # type: ignore[arg-type]


def test_bad_sources_and_chunks_are_refused() -> None:
    with pytest.raises(ValueError, match="at least one document"):
        SourceLengths(lengths=np.empty(0, np.int64))
    with pytest.raises(ValueError, match="it must be integers"):
        SourceLengths(lengths=np.ones(3))
    with pytest.raises(ValueError, match="weight is 0"):
        source([1], weight=0)
    with pytest.raises(ValueError, match="weight is inf"):
        source([1], weight=float("inf"))
    with pytest.raises(ValueError, match="max_epochs is 0"):
        source([1], max_epochs=0)
    with pytest.raises(ValueError, match="min_tokens is 0"):
        source([1], min_tokens=0)
    with pytest.raises(ValueError, match="'split'; it must be one of cut, truncate, drop"):
        source([1], longer_than_context="split")
    with pytest.raises(ValueError, match="num_pieces is 0"):
        Stream([source([1])], seed=0, context_length=1).chunks(0)
