"""Every policy equals its plain-Python twin, compiled and not."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import example, given, settings

from packer.packing import (
    kernels,
    kernels_concat,
    kernels_fit,
    kernels_fixed,
    kernels_karmarkar_karp,
    kernels_order,
    kernels_printed,
)
from packer.packing.packer import IntakeTooLarge, Packer, PackingError
from packer.plan import Steps
from tests import reference_baselines, reference_packing
from tests.reference_packing import Step
from tests.strategies import TOO_LARGE_AN_INTAKE, Case, cases

REFERENCES = reference_packing.REFERENCES | reference_baselines.REFERENCES
UNBOUNDED = ("ffd", "bfd", "karmarkar_karp")
"""They refuse nothing."""

KERNELS = (
    kernels,
    kernels_concat,
    kernels_fit,
    kernels_fixed,
    kernels_karmarkar_karp,
    kernels_order,
    kernels_printed,
)


def as_lists(steps: Steps | None) -> list[Step]:
    """A plan as the reference writes it."""
    if steps is None:
        return []
    slots = [
        [(int(position), int(tokens)) for position, tokens in zip(*row, strict=True)]
        for row in zip(
            np.split(steps.pieces.position, steps.row_offsets[1:-1]),
            np.split(steps.pieces.tokens, steps.row_offsets[1:-1]),
            strict=True,
        )
    ]
    num = steps.num_micro_batches
    return [slots[start : start + num] for start in range(0, len(slots), num)]


def compare(policy: str, case: Case) -> str:
    """Compare with the twin; what happened."""
    expected = REFERENCES[policy](case.lengths, case.config, case.workload)
    packer = Packer(policy, case.config, case.workload)
    try:
        steps = packer.push(case.pieces, final=True)
    except PackingError as error:
        return refusal(error, expected.stop, case)
    assert not expected.stop
    assert as_lists(steps) == expected.steps
    tail = packer.tail
    assert list(zip(tail.position, tail.tokens, strict=True)) == expected.tail
    return "equal" if expected.steps else "no step"


def refusal(error: PackingError, stop: str, case: Case) -> str:
    """The twin's reason, which must be a refusal's too."""
    if isinstance(error, IntakeTooLarge):
        assert stop == "late"
        assert 0 < error.sustainable <= case.config.intake_tokens * 99 // 100
    assert stop in ("early", "late", "empty")
    return stop


@pytest.mark.parametrize("policy", REFERENCES)
def test_a_policy_equals_its_twin(policy: str) -> None:
    seen: Counter[str] = Counter()

    @example(TOO_LARGE_AN_INTAKE)
    @given(cases(max_pieces=50))
    @settings(max_examples=120, deadline=None, derandomize=True)
    def run(case: Case) -> None:
        seen[compare(policy, case)] += 1

    run()
    rare = {"equal", "no step"}
    if policy not in UNBOUNDED:
        rare = {"equal", "empty"} if policy == "wlb_printed" else rare | {"late", "early"}
    assert {name for name in rare if seen[name]} == rare


@pytest.mark.parametrize("policy", REFERENCES)
@given(case=cases(max_pieces=30))
@settings(max_examples=15, deadline=None)
def test_kernels_give_the_same_uncompiled(policy: str, case: Case) -> None:
    with pytest.MonkeyPatch.context() as patch:
        for module in KERNELS:
            for name in vars(module):
                function = getattr(module, name)
                if hasattr(function, "py_func"):
                    patch.setattr(module, name, function.py_func)
        compare(policy, case)


def test_kernels_sort_like_numpy() -> None:
    rng = np.random.Generator(np.random.PCG64(0))
    for size in (0, 1, 2, 3, 17, 100):
        key = rng.integers(0, 10, size)
        key.setflags(write=False)
        np.testing.assert_array_equal(
            kernels_order.stable_order(key), np.argsort(key, kind="stable")
        )
