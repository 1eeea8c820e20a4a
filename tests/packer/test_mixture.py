"""Sources are mixed in quotas that are exact at every point of the stream."""

from __future__ import annotations

import math
from collections import Counter
from fractions import Fraction

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from packer.mixture import WEIGHT_SUM
from packer.plan import Pieces
from packer.stream import Stream
from tests.packer.small_streams import LENGTHS, source, whole


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
