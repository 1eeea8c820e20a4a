"""Laws 1, 2, 3 and 5 for every policy that writes plans, on streams that packers do not like.

The packers of others are for comparison: conservation and determinism must hold for them too.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from packer.packing.config import PackingConfig
from packer.packing.packer import POLICIES, Packer, PackingError
from packer.packing.whole import Packing, pack
from packer.plan import Pieces, Steps
from packer.workload import Workload
from tests.strategies import (
    HOSTILE,
    TOO_LARGE_AN_INTAKE,
    Case,
    cases,
    chunkings,
    hostile_lengths,
)

OTHERS = ("ffd", "bfd", "karmarkar_karp")
"""Packers of others, which run in simulations only."""
SEEN: Counter[str] = Counter()
"""Which rare things a policy's property run came across."""


def check_laws(packing: Packing, case: Case) -> None:
    check_conservation(packing, case)
    check_isolation(packing)
    config = packing.config
    left_tokens, left_pieces = int(packing.tail.tokens.sum()), len(packing.tail)
    assert left_tokens < config.intake_tokens or left_pieces < config.num_micro_batches
    if packing.steps is not None:
        check_bounds(packing.steps, config)
        check_order(packing.steps, case.workload)


def check_conservation(packing: Packing, case: Case) -> None:
    """Every token of every document in one piece; a piece knows where in the stream it is."""
    parts = [packing.tail] if packing.steps is None else [packing.steps.pieces, packing.tail]
    pieces = Pieces.concatenate(parts)
    pieces = pieces.take(np.argsort(pieces.position, kind="stable"))
    ends = np.cumsum(pieces.tokens)
    assert pieces.tokens.min() >= 1
    np.testing.assert_array_equal(pieces.position, ends - pieces.tokens)
    assert ends[-1] == sum(case.lengths)
    document_starts = np.cumsum(case.lengths) - case.lengths
    np.testing.assert_array_equal(
        document_starts[pieces.doc_id] + pieces.doc_start, pieces.position
    )
    np.testing.assert_array_equal(pieces.doc_tokens, np.array(case.lengths)[pieces.doc_id])


def check_isolation(packing: Packing) -> None:
    """Pieces of a document part it: a label a token but the document's last, none twice."""
    parts = [packing.tail] if packing.steps is None else [packing.steps.pieces, packing.tail]
    pieces = Pieces.concatenate(parts)
    order = np.lexsort((pieces.doc_start, pieces.doc_id))
    pieces = pieces.take(order)
    same = np.diff(pieces.doc_id) == 0
    np.testing.assert_array_equal(pieces.doc_start[1:][same], pieces.doc_stop[:-1][same])
    np.testing.assert_array_equal(pieces.doc_start[1:][~same], 0)
    np.testing.assert_array_equal(
        pieces.num_targets, pieces.tokens - np.append(~same, True).astype(np.int64)
    )


def check_bounds(steps: Steps, config: PackingConfig) -> None:
    row_pieces = np.diff(steps.row_offsets)
    assert steps.num_steps * config.num_micro_batches == steps.num_rows
    assert steps.row_tokens.max() <= config.max_tokens
    assert row_pieces.min() >= 1
    assert not config.max_pieces or row_pieces.max() <= config.max_pieces
    displacement = np.abs(steps.piece_step - steps.pieces.position // config.intake_tokens)
    assert displacement.max() <= config.max_displacement


def check_order(steps: Steps, workload: Workload) -> None:
    """Slots in non-increasing workload, ties by first position; pieces ascending in a slot."""
    work = np.add.reduceat(workload.of(steps.pieces.tokens), steps.row_offsets[:-1])
    np.testing.assert_array_equal(work + workload.constant, steps.row_workload)
    first = steps.pieces.position[steps.row_offsets[:-1]]
    for slot in range(steps.num_rows - 1):
        if (slot + 1) % steps.num_micro_batches:
            assert (-work[slot], first[slot]) < (-work[slot + 1], first[slot + 1])
    same_row = np.ones(len(steps.pieces), bool)
    same_row[steps.row_offsets[:-1]] = False
    assert np.all(np.diff(steps.pieces.position)[same_row[1:]] > 0)


@pytest.mark.parametrize("policy", POLICIES)
def test_laws_hold_or_the_error_names_a_bound(policy: str) -> None:
    SEEN.clear()

    @example(TOO_LARGE_AN_INTAKE)
    @given(cases(max_pieces=80))
    @settings(max_examples=120, deadline=None, derandomize=True)
    def run(case: Case) -> None:
        try:
            packing = pack(policy, case.pieces, case.config, case.workload)
        except PackingError as error:
            SEEN["refused"] += "max_displacement" in str(error) or "max_tokens" in str(error)
            SEEN["refused without a bound"] += "max_" not in str(error)
            return
        check_laws(packing, case)
        SEEN["steps"] += packing.steps is not None
        SEEN["no step"] += packing.steps is None
        SEEN["tail"] += len(packing.tail) > 0
        SEEN["intake lowered"] += packing.config.intake_tokens < case.config.intake_tokens
        if packing.steps is not None:
            arrival = packing.steps.pieces.position // packing.config.intake_tokens
            SEEN["displaced"] += bool(np.any(packing.steps.piece_step != arrival))

    run()
    rare = {"refused", "steps", "no step", "tail", "intake lowered", "displaced"}
    assert {name for name in rare if SEEN[name]} == rare
    assert not SEEN["refused without a bound"]


@pytest.mark.parametrize("policy", OTHERS)
@given(case=cases(max_pieces=80))
@settings(max_examples=60, deadline=None)
def test_packers_of_others_lose_nothing_and_hold_what_they_promise(policy: str, case: Case) -> None:
    packing = pack(policy, case.pieces, case.config, case.workload)
    check_conservation(packing, case)
    check_isolation(packing)
    if packing.steps is None:
        return
    check_order(packing.steps, case.workload)
    if policy == "karmarkar_karp":
        assert packing.tail.tokens.sum() < case.config.intake_tokens or len(packing.tail) < (
            case.config.num_micro_batches
        )
    else:
        unbounded = replace(packing.config, max_displacement=10**6)
        check_bounds(packing.steps, unbounded)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("name", [name for name in HOSTILE if name != "crumbs, then full"])
@pytest.mark.parametrize("num_micro_batches", [1, 3, 8])
@pytest.mark.parametrize("spare", [0, 16])
def test_hostile_streams_have_a_plan(
    policy: str, name: str, num_micro_batches: int, spare: int
) -> None:
    config = PackingConfig(
        num_micro_batches=num_micro_batches,
        context_length=64,
        max_tokens=64 + spare,
        thresholds=(20, 40),
        global_batches=3,
        longest_first=spare > 0,
    )
    lengths = hostile_lengths(name, 64, 1001)
    case = Case(lengths=lengths, config=config, workload=Workload(crossover=30))
    packing = pack(policy, case.pieces, config, case.workload)
    assert packing.steps is not None
    check_laws(packing, case)


@pytest.mark.parametrize("policy", POLICIES)
def test_fewer_pieces_than_micro_batches_are_all_tail(policy: str) -> None:
    config = PackingConfig(num_micro_batches=9, context_length=4, max_tokens=4, intake_tokens=1)
    pieces = Pieces.from_lengths(np.array([1, 2, 1]))
    packing = pack(policy, pieces, config, Workload(crossover=1))
    assert packing.steps is None
    np.testing.assert_array_equal(packing.tail.position, [0, 1, 3])


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("max_pieces", [1, 2, 5])
def test_a_tiny_bound_on_pieces_lowers_the_intake_and_holds(policy: str, max_pieces: int) -> None:
    config = PackingConfig(
        num_micro_batches=4, context_length=64, max_tokens=80, max_pieces=max_pieces
    )
    # lengths that divide S, so that what is cut at borders is as it is
    case = Case(lengths=(2,) * 5000, config=config, workload=Workload(crossover=30))
    packing = pack(policy, case.pieces, config, case.workload)
    check_laws(packing, case)
    assert packing.config.intake_tokens == 8 * max_pieces
    assert packing.steps is not None
    assert set(np.diff(packing.steps.row_offsets)) == {max_pieces}


@pytest.mark.parametrize("policy", [*POLICIES, *OTHERS, "wlb_printed"])
@given(data=st.data(), case=cases(max_pieces=60))
@settings(max_examples=50, deadline=None)
def test_steps_do_not_depend_on_how_the_stream_is_cut(
    policy: str, data: st.DataObject, case: Case
) -> None:
    borders = data.draw(chunkings(len(case.lengths)))
    whole = run_in_chunks(policy, case, [0, len(case.lengths)])
    assert run_in_chunks(policy, case, borders) == whole
    assert run_in_chunks(policy, case, list(range(len(case.lengths) + 1))) == whole


def run_in_chunks(policy: str, case: Case, borders: list[int]) -> list[object]:
    """All that can be seen of a packing, or the error it ends with."""
    packer = Packer(policy, case.config, case.workload, first_step=7)
    parts: list[Steps] = []
    try:
        for start, stop in pairwise(borders):
            parts.append(packer.push(case.pieces.take(slice(start, stop))))
        parts.append(packer.push(Pieces.empty(), final=True))
    except PackingError as error:
        return [type(error).__name__, str(error)]
    parts = [part for part in parts if part is not None]
    seen: list[object] = [packer.tail.position.tolist(), packer.tail.doc_start.tolist()]
    if parts:
        steps = Steps.concatenate(parts)
        seen += [steps.first_step, steps.row_offsets.tolist(), steps.row_workload.tolist()]
        seen += [steps.pieces.position.tolist(), steps.pieces.doc_stop.tolist()]
    return seen


@pytest.mark.parametrize("policy", POLICIES)
def test_the_backlog_stays_small_on_a_long_stream(policy: str) -> None:
    config = PackingConfig(
        num_micro_batches=4,
        context_length=64,
        max_tokens=80,
        thresholds=(33,),
        window_steps=3,
        moves_per_piece=20,
        global_batches=3,
    )
    lengths = hostile_lengths("powers of two plus one", 64, 5000)
    case = Case(lengths=lengths, config=config, workload=Workload(crossover=30))
    packer = Packer(policy, config, case.workload)
    most = 0
    for start in range(0, 5000, 50):
        packer.push(case.pieces.take(slice(start, start + 50)))
        most = max(most, int(packer.tail.tokens.sum()))
    assert 0 < most < (6 + 3 * (policy == "lookahead")) * config.intake_tokens


@example(name="full")
@given(name=st.sampled_from(HOSTILE))
@settings(max_examples=10, deadline=None)
def test_the_same_stream_gives_the_same_plan_from_read_only_arrays(name: str) -> None:
    config = PackingConfig(num_micro_batches=2, context_length=16, max_tokens=20, thresholds=(9,))
    pieces = Pieces.from_lengths(np.array(hostile_lengths(name, 16, 200)))
    frozen = replace(pieces)
    for array in (frozen.position, frozen.doc_stop, frozen.doc_start, frozen.doc_id):
        array.setflags(write=False)
    for policy in (*POLICIES, *OTHERS):
        try:
            packing = pack(policy, frozen, config, Workload(crossover=10))
        except PackingError:
            continue
        again = pack(policy, pieces.take(slice(None)), config, Workload(crossover=10))
        assert packing.steps is not None
        assert again.steps is not None
        np.testing.assert_array_equal(packing.steps.pieces.position, again.steps.pieces.position)
