"""Measured times in the place of formulas."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packer.profile import MOST_TOKENS, Profile, Table, parse_profile
from packer.workload import SCALE, Workload

GRID = tuple(64 << k for k in range(11))  # 64 to 65,536
LINEAR = Table(tokens=GRID, time=tuple(float(d) for d in GRID))


def profile(attention: dict[int, float], linear: Table = LINEAR) -> Profile:
    return Profile(
        linear=linear, attention=Table(tokens=tuple(attention), time=tuple(attention.values()))
    )


def attention(given: dict[int, float], *tokens: int) -> list[float]:
    return profile(given).attention_time(np.array(tokens)).tolist()


def linear(given: dict[int, float], *tokens: int) -> list[float]:
    table = Table(tokens=tuple(given), time=tuple(given.values()))
    return profile({1: 0.125, 2: 0.25}, table).linear_time(np.array(tokens)).tolist()


def test_points_are_met() -> None:
    times = {8: 1.0, 16: 1.5, 32: 7.0, 64: 9.0}
    assert attention(times, *times) == list(times.values())
    assert linear(times, *times) == list(times.values())


def test_a_quadratic_is_met_between_before_and_beyond_the_points() -> None:
    times = {8: 4.0, 32: 64.0, 64: 256.0}
    tokens = [1, 4, 9, 20, 33, 50, 64, 100, 1000]
    assert attention(times, *tokens) == [d * d / 16 for d in tokens]


def test_what_a_window_leaves_of_attention_is_met() -> None:
    times = {16: 40.0, 64: 160.0}
    assert attention(times, 16, 20, 63, 128) == [40.0, 50.0, 157.5, 320.0]


def test_where_time_a_token_falls_time_itself_is_a_line() -> None:
    times = {64: 3.0, 256: 3.5, 512: 9.0}
    assert attention(times, 160, 256) == [3.25, 3.5]
    assert attention({64: 3.0, 256: 3.5}, 448) == [4.0]  # beyond the points as well


def test_the_rest_goes_linearly_from_nothing() -> None:
    assert linear({10: 5.0, 20: 6.0, 30: 8.0}, 2, 15, 25, 40) == [1.0, 5.5, 7.0, 10.0]


def test_the_unit_is_a_token_of_the_longest_linear_point() -> None:
    flat = Table(tokens=(10, 100), time=(5.0, 25.0))
    found = profile({10: 1.0, 100: 100.0}, flat)
    assert found.unit == 0.25
    assert found.constant_work(2.0, scale=SCALE) == 8 * SCALE
    work = Workload(crossover=None, profile=found).of(np.array([100, 10]))
    assert work.tolist() == [500 * SCALE, 24 * SCALE]


def test_the_papers_figure_as_a_profile_is_its_crossover() -> None:
    """Figure 7 of WLB-LLM: 1.72e-7 d^2 and 0.00808 d, so a crossover of 46,977 tokens."""
    lengths = (4096, 8192, 16_384, 32_768, 65_536, 86_016)
    measured = Profile(
        linear=Table(tokens=lengths, time=tuple(0.00808 * d for d in lengths)),
        attention=Table(tokens=lengths, time=tuple(1.72e-7 * d * d for d in lengths)),
    )
    tokens = np.array([1, 100, 5000, 47_000, 131_072])
    np.testing.assert_allclose(
        Workload(crossover=None, profile=measured).of(tokens),
        tokens * SCALE * (1 + tokens / (0.00808 / 1.72e-7)),
        rtol=1e-9,
        atol=0.5,
    )


increments = st.lists(st.floats(1e-6, 1e3), min_size=2, max_size=12)


@given(times=increments, steps=st.lists(st.integers(1, 100), min_size=12, max_size=12))
def test_time_never_falls(times: list[float], steps: list[int]) -> None:
    tokens = np.cumsum(steps)[: len(times)].tolist()
    table = Table.parse({"tokens": tokens, "time": np.cumsum(times).tolist()}, "attention")
    found = Profile(linear=Table(tokens=(1, 2), time=(1e3, 2e3)), attention=table)
    lengths = np.arange(1, tokens[-1] + 200)
    took = found.attention_time(lengths)
    assert np.all(took > 0)
    assert np.all(np.diff(took) > -1e-9 * took[1:])
    assert np.all(np.diff(found.work_of(lengths, scale=SCALE)) >= 0)


def document(**change: Any) -> dict[str, Any]:
    return {
        "format": "steelyard-profile",
        "version": 1,
        "about": {"device": "none"},
        "linear": {"tokens": [1024, 4096], "time": [1, 4.5]},
        "attention": {"tokens": [1024, 4096], "time": [0.5, 8]},
        "constant": 0.25,
    } | change


def test_a_file_is_read() -> None:
    found, constant = parse_profile(document())
    assert constant == 0.25
    assert found.linear == Table(tokens=(1024, 4096), time=(1.0, 4.5))
    assert found.attention == Table(tokens=(1024, 4096), time=(0.5, 8.0))
    assert Profile.from_tables(found.tables()) == found


def table(tokens: list[Any], time: list[Any]) -> dict[str, Any]:
    return {"tokens": tokens, "time": time}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"format": "x"}, '"format" must be "steelyard-profile"'),
        ({"version": None}, "version is None; this program reads version 1"),
        ({"version": 2}, "version is 2"),
        ({"version": True}, "version is True"),
        ({"atention": 1}, "unknown fields \\['atention'\\]"),
        ({"linear": None}, 'linear must be an object with the lists "tokens" and "time"'),
        ({"linear": table([5], [1])}, "linear has 1 lengths and 1 times"),
        ({"linear": table([5, 6], [1])}, "linear has 2 lengths and 1 times"),
        ({"attention": table([5, 5], [1, 2])}, "attention.tokens must be positive and strictly"),
        ({"attention": table([5, 6], [2, 2])}, "attention.time must be positive and strictly"),
        ({"attention": table([5, 6], [0, 2])}, "but 0.0 follows 0.0"),
        ({"attention": table([5, 6], [1, float("nan")])}, "but nan follows 1.0"),
        ({"attention": table([5, 6.5], [1, 2])}, "whole numbers"),
        ({"attention": table([5, "6"], [1, 2])}, "'6'"),
        ({"attention": table([5, 6], [1, True])}, "holds True"),
        ({"attention": table([5, MOST_TOKENS + 1], [1, 2])}, "at most 67108864"),
        ({"attention": table([5, 6], [1, 1e30])}, "not in one unit"),
        ({"constant": -1}, "constant is -1"),
        ({"constant": "much"}, "constant is 'much'"),
    ],
)
def test_bad_profiles_are_refused(change: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        parse_profile(document(**change))


def test_what_is_no_object_is_no_profile() -> None:
    with pytest.raises(ValueError, match="not a profile"):
        parse_profile([1, 2])
