"""The stream holds every selected piece once, however it is asked for."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packer import stream as stream_module
from packer.plan import Pieces
from packer.source_lengths import SourceLengths
from packer.stream import Selection, Stream
from tests import reference_stream as slow
from tests.packer.small_streams import LONGEST_KEPT, mixtures, rows, slow_sources, source, whole


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
