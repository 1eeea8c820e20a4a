"""Every mesh computes what one process computes on the pieces one by one: loss and every gradient.

In float64 on gloo, over real shards. The reference shares no code with the model.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from packer.context_parallel import STRATEGIES
from pipeline.shard.reader import open_shards
from tests.trainer import rank_jobs
from tests.trainer.ranks import run_ranks
from tests.trainer.small_sets import (
    NUM_MICRO_BATCHES,
    build_without_targets,
    first_weights,
    reference_step,
    replanned,
    settings,
)

MESHES: dict[str, dict[str, int]] = {
    "one rank": {},
    "tp 2": {"tp_size": 2},
    "cp 2": {"cp_size": 2},
    "pp 2": {"pp_size": 2},
    "dp 2": {"dp_size": 2},
    "pp 4": {"pp_size": 4},
    "cp 2, pp 2": {"cp_size": 2, "pp_size": 2},
    "cp 2, tp 2": {"cp_size": 2, "tp_size": 2},
    "dp 2, pp 2": {"dp_size": 2, "pp_size": 2},
    "dp 4": {"dp_size": 4},
    "all of 2": {"dp_size": 2, "cp_size": 2, "pp_size": 2, "tp_size": 2},
}
STEPS = (0, 1)
TOLERANCE = 1e-12
Records = list[dict[str, Any]]


def size_of(mesh: dict[str, int]) -> int:
    return int(np.prod([1, *mesh.values()]))


def joined(ranks: list[list[Records]]) -> list[Records]:
    """The records of each run, gradients of all stages together."""
    runs = []
    for of_ranks in zip(*ranks, strict=True):
        records = []
        for step in zip(*of_ranks, strict=True):
            gradients: dict[str, np.ndarray] = {}
            for record in step:
                assert not gradients.keys() & record["gradients"].keys()
                gradients |= record["gradients"]
            assert len({record["loss"] for record in step}) == 1
            records.append({**step[0], "gradients": gradients})
        runs.append(records)
    return runs


@pytest.fixture(scope="module")
def expected(small_set: Path) -> Records:
    """Losses and gradients at the first weights, of each step."""
    weights, records = first_weights(), []
    for step in STEPS:
        loss = reference_step(small_set, step, weights)
        gradients = {name: weight.grad for name, weight in weights.items()}
        records.append({"loss": loss, "gradients": gradients})
    return records


def assert_equal(found: dict[str, Any], expected: dict[str, Any]) -> None:
    assert found["loss"] == pytest.approx(expected["loss"], rel=TOLERANCE)
    assert found["gradients"].keys() == expected["gradients"].keys()
    squares = 0.0
    for name, gradient in expected["gradients"].items():
        gradient = np.asarray(gradient)
        scale = np.abs(gradient).max()
        assert scale > 1e-6, f"{name} has no gradient to speak of"
        difference = np.abs(found["gradients"][name] - gradient).max() / scale
        assert difference < TOLERANCE, f"{name} is off by {difference:.2g}"
        squares += float(np.square(gradient).sum())
    assert found["grad_norm"] == pytest.approx(squares**0.5, rel=TOLERANCE)


def frozen(model: Path, mesh: dict[str, int], **run: Any) -> dict[str, Any]:
    """Settings whose learning rate is 0, so that every step is at the first weights."""
    still = {"lr": 0.0, "min_lr": 0.0}
    return settings(model, mesh=mesh, optimizer=still, run=run)


@pytest.fixture(scope="module")
def computed(small_set: Path, small_model: Path) -> Callable[[str], Records]:
    """The steps on a mesh; all meshes of as many ranks are computed in one go."""

    @cache
    def of_size(world_size: int) -> dict[str, Records]:
        names = [name for name, mesh in MESHES.items() if size_of(mesh) == world_size]
        runs = [(frozen(small_model, MESHES[name]), str(small_set)) for name in names]
        ranks = run_ranks(world_size, rank_jobs.train, runs, world_size, STEPS)
        return dict(zip(names, joined(ranks), strict=True))

    return lambda name: of_size(size_of(MESHES[name]))[name]


@pytest.mark.parametrize("mesh", MESHES)
def test_every_mesh_computes_what_one_process_does_on_the_pieces_one_by_one(
    mesh: str, computed: Callable[[str], Records], expected: Records
) -> None:
    for found, wanted in zip(computed(mesh), expected, strict=True):
        assert_equal(found, wanted)


def test_the_set_is_no_easy_one(small_set: Path) -> None:
    reader = open_shards(small_set)
    assert reader.num_steps > max(STEPS) + 1
    assert reader.manifest.segment_of(0).num_micro_batches == NUM_MICRO_BATCHES
    tokens = [reader.shapes(step, dp_rank=0, dp_size=1, cp_size=2) for step in STEPS]
    assert any((table % 2).any() for table in tokens)  # tensor parallelism pads
    assert len(np.unique(tokens)) > NUM_MICRO_BATCHES  # stages send many shapes
    pieces = [len(reader.micro_batch(0, slot).last_labels) for slot in range(NUM_MICRO_BATCHES)]
    assert max(pieces) > 2
    counts = [
        reader.exchange(0, slot, cp_rank=rank, cp_size=2).num_received
        for slot in range(NUM_MICRO_BATCHES)
        for rank in (0, 1)
    ]
    assert sum(counts) > 0


def test_every_cp_strategy_gives_the_same(
    small_set: Path, small_model: Path, expected: Records
) -> None:
    tables = frozen(small_model, {"cp_size": 2})
    runs = [(tables, str(replanned(small_set, strategy))) for strategy in STRATEGIES]
    ranks = run_ranks(2, rank_jobs.train, runs, 2, STEPS)
    for strategy, records in zip(STRATEGIES, joined(ranks), strict=True):
        for found, wanted in zip(records, expected, strict=True):
            try:
                assert_equal(found, wanted)
            except AssertionError as error:
                raise AssertionError(f"{strategy}: {error}") from error


def test_token_stores_give_what_shards_give(
    small_set: Path, small_model: Path, computed: Callable[[str], Records]
) -> None:
    runs = [(frozen(small_model, {}, tokens_from="stores"), str(small_set))]
    (found,) = joined(run_ranks(1, rank_jobs.train, runs, 1, STEPS))
    assert [r["loss"] for r in found] == [r["loss"] for r in computed("one rank")]


def test_recomputing_layers_changes_nothing(
    small_set: Path, small_model: Path, computed: Callable[[str], Records]
) -> None:
    mesh = MESHES["cp 2, tp 2"]
    runs = [(frozen(small_model, mesh, recompute=True), str(small_set))]
    (found,) = joined(run_ranks(4, rank_jobs.train, runs, 4, STEPS))
    for record, plain in zip(found, computed("cp 2, tp 2"), strict=True):
        assert record["loss"] == plain["loss"]
        for name, gradient in plain["gradients"].items():
            np.testing.assert_array_equal(record["gradients"][name], gradient)


def test_bfloat16_is_near_and_sums_gradients_in_float32(
    small_set: Path, small_model: Path, expected: Records
) -> None:
    mesh = {"cp_size": 2}
    runs = [(frozen(small_model, mesh, precision="bfloat16"), str(small_set))]
    (records,) = joined(run_ranks(2, rank_jobs.train, runs, 2, STEPS))
    for found, wanted in zip(records, expected, strict=True):
        assert found["loss"] == pytest.approx(wanted["loss"], rel=0.01)
        for name, gradient in found["gradients"].items():
            assert gradient.dtype == np.float32
            exact = np.asarray(wanted["gradients"][name])
            assert np.linalg.norm(gradient - exact) < 0.1 * np.linalg.norm(exact), name


def test_a_step_without_targets_has_loss_0_and_no_gradient(
    small_model: Path, tmp_path: Path
) -> None:
    runs = [(settings(small_model, mesh={"pp_size": 2}), str(build_without_targets(tmp_path)))]
    (records,) = joined(run_ranks(2, rank_jobs.train, runs, 2, [0]))
    assert [record["targets"] for record in records] == [0]
    assert (records[0]["loss"], records[0]["grad_norm"]) == (0.0, 0.0)
