"""What a piece costs, in closed form."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packer.profile import Profile, Table
from packer.workload import LONGEST_PIECE, SCALE, Span, Workload
from tests import reference_workload as slow

PROFILE = Profile(
    linear=Table(tokens=(10, 20), time=(1.0, 2.0)),
    attention=Table(tokens=(10, 20), time=(0.5, 2.0)),
)
MODELS = {
    "quadratic": Workload(crossover=47_100, constant=7),
    "window": Workload(crossover=96_768, spans=(Span(mask="window", tokens=9, crossover=50),)),
    "chunk": Workload(crossover=None, spans=(Span(mask="chunk", tokens=5, crossover=3),)),
    "linear": Workload(crossover=None),
    "profile": Workload(crossover=None, profile=PROFILE, constant=12),
}


def of(workload: Workload, *tokens: int) -> list[int]:
    return workload.of(np.array(tokens)).tolist()


def test_tokens_at_the_crossover_count_twice() -> None:
    assert of(Workload(crossover=1000), 1000, 2000) == [2000 * SCALE, 6000 * SCALE]


def test_the_integers_of_the_quadratic_model_are_those_of_the_format() -> None:
    lengths = [1, 2, 3, 127, 4096, 47_100, 131_072, LONGEST_PIECE]
    for crossover in (1, 2, 3, 40, 47_100, 104_448, LONGEST_PIECE):
        expected = [((d * crossover + d * d) * 256 + crossover // 2) // crossover for d in lengths]
        assert of(Workload(crossover=crossover), *lengths) == expected


def test_a_window_is_quadratic_up_to_its_length_and_linear_from_there() -> None:
    window = Workload(crossover=None, spans=(Span(mask="window", tokens=4, crossover=8),))
    # Twice the pairs: 2^2, 4^2, then 2 x 4 more a token.
    squares = {2: 4, 4: 16, 5: 24, 6: 32, 100: 8 * 100 - 16}
    assert of(window, *squares) == [SCALE * d + SCALE * n // 8 for d, n in squares.items()]


def test_chunks_see_nothing_of_one_another() -> None:
    chunks = Workload(crossover=None, spans=(Span(mask="chunk", tokens=4, crossover=16),))
    squares = {3: 9, 4: 16, 5: 17, 8: 32, 11: 41}
    assert of(chunks, *squares) == [SCALE * d + SCALE * n // 16 for d, n in squares.items()]


def test_kinds_of_layers_add_up() -> None:
    span = Span(mask="window", tokens=4, crossover=8)
    both = Workload(crossover=16, spans=(span,))
    apart = [Workload(crossover=16), Workload(crossover=None, spans=(span,))]
    lengths = np.arange(1, 50)
    total = apart[0].of(lengths) + apart[1].of(lengths) - lengths * SCALE
    np.testing.assert_array_equal(both.of(lengths), total)


def test_layers_without_pairs_cost_by_the_token_alone() -> None:
    assert of(Workload(crossover=None), 1, 1000) == [SCALE, 1000 * SCALE]
    assert Workload(crossover=None).attention_of(np.array([5])).tolist() == [0]


@given(
    length=st.integers(1, 40),
    crossover=st.none() | st.integers(1, 60),
    mask=st.sampled_from(["window", "chunk"]),
    tokens=st.integers(1, 50),
    scale=st.integers(1, 60),
)
def test_it_is_the_pairs_counted_one_by_one(
    length: int, crossover: int | None, mask: str, tokens: int, scale: int
) -> None:
    spans = (Span(mask=mask, tokens=tokens, crossover=scale),)
    model = Workload(crossover=crossover, spans=spans)
    assert of(model, length) == [slow.workload(length, crossover, spans)]


@pytest.mark.parametrize("name", MODELS)
def test_longer_pieces_cost_more_and_attention_is_a_part_of_it(name: str) -> None:
    lengths = np.concatenate([np.arange(1, 3000), np.array([1 << 20, LONGEST_PIECE])])
    work = MODELS[name].of(lengths)
    assert work.dtype == np.int64
    assert np.all(np.diff(work) > 0)
    attention = MODELS[name].attention_of(lengths)
    assert np.all(attention >= 0)
    np.testing.assert_allclose(work - attention, lengths * SCALE, atol=1)


@pytest.mark.parametrize("name", MODELS)
def test_a_model_is_a_value_and_survives_json(name: str) -> None:
    model = MODELS[name]
    again = Workload.from_dict(json.loads(json.dumps(model.as_dict())))
    assert again == model
    assert hash(again) == hash(model)
    assert again.constant == model.constant


def test_the_quadratic_model_is_written_as_it_always_was() -> None:
    assert Workload(crossover=40, constant=3).as_dict() == {
        "model": "quadratic",
        "crossover": 40,
        "scale": 256,
        "constant": 3,
    }


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("quadratic", "crossover 47,100 tokens"),
        ("window", "crossover 96,768 tokens; 50 of layers with a window of 9"),
        ("chunk", "3 of layers with a chunk of 5"),
        ("linear", "by the token alone"),
        ("profile", "a profile of 2 points up to 20 tokens"),
    ],
)
def test_a_model_says_what_it_is(name: str, words: str) -> None:
    assert str(MODELS[name]) == words


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model": "cubic"}, "'cubic'"),
        ({"scale": 128}, "1/128"),
        ({"crossover": "40"}, "crossover is 40"),
        ({"crossover": 0}, "crossover is 0"),
        ({"constant": -1}, "constant is -1"),
        ({"model": "layers"}, "spans"),
        ({"model": "layers", "spans": [{"mask": "window"}]}, "malformed"),
        ({"model": "layers", "spans": [dict(mask="ring", tokens=1, crossover=1)]}, "'ring'"),
        ({"model": "profile"}, "linear"),
    ],
)
def test_a_model_that_is_not_understood_is_refused(change: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Workload.from_dict(Workload(crossover=40).as_dict() | change)


def test_bounds_are_checked() -> None:
    with pytest.raises(ValueError, match=f"{LONGEST_PIECE + 1} tokens; the longest allowed"):
        Workload(crossover=1).of(np.array([LONGEST_PIECE + 1]))
    with pytest.raises(ValueError, match="a window of 0 tokens"):
        Span(mask="window", tokens=0, crossover=1)
    with pytest.raises(ValueError, match="give it alone"):
        Workload(crossover=3, profile=PROFILE)
