"""The stream holds every selected piece once, in quotas exact at every point of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packer import stream as stream_module
from packer.mixture import WEIGHT_SUM, integer_weights
from packer.plan import Pieces
from packer.stream import SourceLengths, Stream
from tests import reference_stream as slow


def source(
    lengths: Sequence[int], weight: float | None = None, max_epochs: int = 1
) -> SourceLengths:
    array = np.array(lengths, dtype=np.uint32)
    array.flags.writeable = False
    return SourceLengths(lengths=array, weight=weight, max_epochs=max_epochs)


def whole(stream: Stream, num_pieces: int = 1 << 10) -> Pieces:
    return Pieces.concatenate(list(stream.chunks(num_pieces)))


def rows(pieces: Pieces) -> list[slow.Piece]:
    columns = (pieces.source, pieces.epoch, pieces.doc_id, pieces.doc_start, pieces.doc_stop)
    return list(zip(*(column.tolist() for column in columns), strict=True))


LENGTHS = st.lists(st.one_of(st.integers(1, 9), st.integers(1, 60)), min_size=1, max_size=30)


@st.composite
def mixtures(draw: st.DrawFn) -> list[SourceLengths]:
    number = draw(st.integers(1, 4))
    weighted = draw(st.booleans())
    weights = st.sampled_from([0.001, 0.3, 0.999, 1.0, 7.0])
    return [
        source(draw(LENGTHS), draw(weights) if weighted else None, draw(st.integers(1, 3)))
        for _ in range(number)
    ]


def slow_sources(sources: Sequence[SourceLengths], stream: Stream) -> list[slow.SlowSource]:
    return [
        slow.SlowSource(s.lengths.tolist(), int(weight), s.max_epochs)
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
    assert (cut.documents, cut.tokens, cut.pieces, cut.cut_documents) == (3, 14, 5, 1)


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
    monkeypatch.setattr(stream_module, "SCAN_DOCUMENTS", 3)
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


def check_quotas(pieces: Pieces, weights: np.ndarray, longest: int) -> tuple[Fraction, Fraction]:
    """The furthest that any source ever is ahead of and behind its quota, in longest pieces."""
    emitted = np.zeros(len(weights), dtype=object)
    ahead = behind = Fraction(0)
    for number, tokens in zip(pieces.source.tolist(), pieces.tokens.tolist(), strict=True):
        emitted[number] += tokens
        for i, weight in enumerate(weights.tolist()):
            surplus = emitted[i] - Fraction(weight * emitted.sum(), WEIGHT_SUM)
            ahead, behind = max(ahead, surplus), max(behind, -surplus)
    return ahead / longest, behind / longest


@given(data=st.data(), seed=st.integers(0, 2**63 - 1))
@settings(max_examples=60, deadline=None)
def test_quotas_hold_along_the_whole_stream(data: st.DataObject, seed: int) -> None:
    weights = data.draw(
        st.sampled_from(
            [[0.001, 0.999], [0.999, 0.001], [1e-9, 1.0], [1, 1], [0.7, 0.2, 0.1], [5, 1, 1, 1, 1]]
        )
    )
    tiny = st.lists(st.integers(1, 40), min_size=1, max_size=3)
    sources = [
        source(data.draw(st.one_of(tiny, LENGTHS)), weight, max_epochs=50) for weight in weights
    ]
    stream = Stream(sources, seed=seed, context_length=16, target_tokens=2000, at_source_end="stop")
    ahead, behind = check_quotas(whole(stream), stream.weights, 16)
    assert ahead <= 1
    assert behind <= sum(Fraction(1, k) for k in range(1, len(weights)))


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
    longest = data.draw(st.integers(1, 20))
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
    if target is None and not stop:
        assert pieces.tokens.sum() == sum(sum(s.lengths) * s.max_epochs for s in twins)
    check_selection(run.selection(), expected, twins)


def check_selection(
    selection: stream_module.Selection,
    expected: list[slow.Piece],
    sources: Sequence[slow.SlowSource],
) -> None:
    pieces, tokens = Counter[tuple[int, int]](), Counter[tuple[int, int]]()
    for number, epoch, _, start, stop in expected:
        pieces[number, epoch] += 1
        tokens[number, epoch] += stop - start
    begun = sorted(set(pieces) | {(i, 0) for i in range(len(sources))})
    passes = list(zip(selection.source.tolist(), selection.epoch.tolist(), strict=True))
    assert passes == begun
    assert selection.pieces.tolist() == [pieces[one] for one in begun]
    assert selection.tokens.tolist() == [tokens[one] for one in begun]
    assert (selection.tokens + selection.unselected_tokens).tolist() == [
        sum(sources[number].lengths) for number, _ in begun
    ]


def test_the_stream_does_not_depend_on_chunks_or_queues(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(2)
    sources = [source(rng.integers(1, 300, 3000).tolist(), w, 2) for w in (1.0, 2.0, 0.1)]
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


# --- weights and errors --------------------------------------------------------------------------


@given(st.lists(st.floats(1e-12, 1e12), min_size=1, max_size=50))
def test_integer_weights_sum_exactly_and_leave_nobody_out(weights: list[float]) -> None:
    integers = integer_weights(weights)
    assert integers.dtype == np.int64
    assert integers.sum() == WEIGHT_SUM
    assert integers.min() >= 1
    total = sum(Fraction(weight) for weight in weights)
    shares = [Fraction(weight) * WEIGHT_SUM / total for weight in weights]
    if min(shares) >= 1:
        assert all(abs(i - s) < 1 for i, s in zip(integers.tolist(), shares, strict=True))


def test_integer_weights_give_what_is_left_to_the_largest_remainders_then_by_order() -> None:
    third = WEIGHT_SUM // 3
    assert integer_weights([1, 1, 1]).tolist() == [third + 1, third, third]
    assert integer_weights([1, 2**40]).tolist() == [1, WEIGHT_SUM - 1]
    assert integer_weights([5]).tolist() == [WEIGHT_SUM]


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
    with pytest.raises(ValueError, match="num_pieces is 0"):
        Stream([source([1])], seed=0, context_length=1).chunks(0)
