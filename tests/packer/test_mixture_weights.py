"""Weights in any unit become integers with one sum."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from packer.mixture import WEIGHT_SUM, integer_weights


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
