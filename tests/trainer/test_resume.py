"""A run that ends and goes on is the run that did not end: on its mesh to the last digit."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.trainer import rank_jobs
from tests.trainer.ranks import run_ranks
from tests.trainer.small_sets import first_weights, reference_step, settings, sign
from trainer.lineage import newest
from trainer.optimization import learning_rate
from trainer.settings import parse_settings

NUM_STEPS, STOPPED = 5, 3
FIRST_MESH = {"pp_size": 2, "tp_size": 2}
OTHER_MESHES = [
    {"dp_size": 4},
    {"cp_size": 2, "dp_size": 2},
    pytest.param({}, marks=pytest.mark.slow),
    pytest.param({"dp_size": 2, "tp_size": 2}, marks=pytest.mark.slow),
]


def tables(model: Path, mesh: dict[str, int], directory: Path, steps: int) -> dict[str, Any]:
    return settings(
        model,
        mesh=mesh,
        run={"steps": NUM_STEPS},
        checkpoint={"directory": str(directory), "every_steps": steps},
        optimizer={"max_grad_norm": 0.9},
    )


@pytest.fixture(scope="module")
def whole_run(
    small_set: Path, small_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, list[dict[str, Any]]]:
    """A run without a break: its checkpoints and records."""
    directory = tmp_path_factory.mktemp("checkpoints")
    arguments = (tables(small_model, FIRST_MESH, directory, STOPPED), str(small_set), 4)
    records, _ = run_ranks(4, rank_jobs.train_on, *arguments)[0]
    assert [record["step"] for record in records] == list(range(NUM_STEPS))
    return directory, records


def resumed(
    whole_run: tuple[Path, list[dict[str, Any]]],
    directory: Path,
    model: Path,
    shards: Path,
    mesh: dict[str, int],
) -> tuple[list[dict[str, Any]], list[str]]:
    """The run as it goes on after it was killed in the step after its first checkpoint."""
    name = f"step-{STOPPED:08d}"
    shutil.copytree(whole_run[0] / name, directory / name)
    (directory / f"step-{STOPPED + 1:08d}.partial").mkdir()  # killed while it was saving
    world_size = parse_settings(tables(model, mesh, directory, 0)).mesh.world_size
    arguments = (tables(model, mesh, directory, 0), str(shards), world_size)
    return run_ranks(world_size, rank_jobs.train_on, *arguments)[0]


def test_on_the_same_mesh_it_goes_on_to_the_last_digit(
    whole_run: tuple[Path, list[dict[str, Any]]], tmp_path: Path, small_model: Path, small_set: Path
) -> None:
    records, notes = resumed(whole_run, tmp_path, small_model, small_set, FIRST_MESH)
    assert f"goes on at step {STOPPED} of {NUM_STEPS}" in notes[0]
    for found, wanted in zip(records, whole_run[1][STOPPED:], strict=True):
        for figure in ("step", "loss", "grad_norm", "lr", "tokens"):
            assert found[figure] == wanted[figure]


@pytest.mark.parametrize("mesh", OTHER_MESHES, ids=str)
def test_on_another_mesh_it_runs_exactly_the_steps_that_are_left(
    mesh: dict[str, int],
    whole_run: tuple[Path, list[dict[str, Any]]],
    tmp_path: Path,
    small_model: Path,
    small_set: Path,
) -> None:
    records, _ = resumed(whole_run, tmp_path, small_model, small_set, mesh)
    for found, wanted in zip(records, whole_run[1][STOPPED:], strict=True):
        assert found["step"] == wanted["step"]
        assert found["tokens"] == wanted["tokens"]
        for figure in ("loss", "grad_norm"):
            assert found[figure] == pytest.approx(wanted[figure], rel=1e-10)


def test_the_run_is_that_of_adamw_on_the_pieces_one_by_one(
    whole_run: tuple[Path, list[dict[str, Any]]], small_set: Path, small_model: Path, tmp_path: Path
) -> None:
    chosen = parse_settings(tables(small_model, {}, tmp_path, 0)).optimizer
    weights = first_weights()
    matrices = [w for w in weights.values() if w.ndim > 1]
    norms = [w for w in weights.values() if w.ndim == 1]
    optimizer = torch.optim.AdamW(
        [{"params": matrices}, {"params": norms, "weight_decay": 0.0}],
        betas=(0.9, 0.95),
        weight_decay=0.1,
    )
    clipped = 0
    for record in whole_run[1]:
        loss = reference_step(small_set, record["step"], weights)
        norm = sum(weight.grad.square().sum().item() for weight in weights.values()) ** 0.5
        if norm > 0.9:
            clipped += 1
            for weight in weights.values():
                weight.grad *= 0.9 / norm
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(record["step"], NUM_STEPS, chosen)
        optimizer.step()
        assert record["loss"] == pytest.approx(loss, rel=1e-10)
        assert record["grad_norm"] == pytest.approx(norm, rel=1e-10)
    assert clipped
    assert whole_run[1][-1]["loss"] < whole_run[1][0]["loss"]


def test_settings_hold_as_they_are_given_when_a_run_goes_on(
    whole_run: tuple[Path, list[dict[str, Any]]], tmp_path: Path, small_model: Path, small_set: Path
) -> None:
    name = f"step-{STOPPED:08d}"
    shutil.copytree(whole_run[0] / name, tmp_path / name)
    chosen = tables(small_model, {}, tmp_path, 0)
    chosen["optimizer"] |= {"weight_decay": 0.25, "beta2": 0.5, "eps": 1e-3}
    groups = run_ranks(1, rank_jobs.resumed_groups, chosen, str(small_set))[0]
    assert [group["weight_decay"] for group in groups] == [0.25, 0.0]
    for group in groups:
        assert (group["betas"], group["eps"]) == ((0.9, 0.5), 1e-3)
        assert group["counts"] == {STOPPED}


@pytest.mark.parametrize("lost", ["__0_0.distcp", ".metadata"])
def test_a_damaged_checkpoint_is_refused_in_one_line(
    lost: str,
    whole_run: tuple[Path, list[dict[str, Any]]],
    tmp_path: Path,
    small_model: Path,
    small_set: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    name = f"step-{NUM_STEPS:08d}"
    shutil.copytree(whole_run[0] / name, tmp_path / name)
    (tmp_path / name / lost).unlink()
    arguments = (tables(small_model, {}, tmp_path, 0), str(small_set), 1)
    with pytest.raises(
        AssertionError, match=rf"TrainerError: .*{lost}: is missing; .*remove {name}"
    ):
        run_ranks(1, rank_jobs.train_on, *arguments)
    assert "Traceback" not in capfd.readouterr().err  # torch's


def test_torchs_advice_to_trust_a_damaged_file_is_not_passed_on(
    whole_run: tuple[Path, list[dict[str, Any]]], tmp_path: Path, small_model: Path, small_set: Path
) -> None:
    checkpoint = tmp_path / f"step-{NUM_STEPS:08d}"
    shutil.copytree(whole_run[0] / checkpoint.name, checkpoint)
    data = bytearray((checkpoint / "__0_0.distcp").read_bytes())
    data[3] ^= 8
    (checkpoint / "__0_0.distcp").write_bytes(data)
    sign(checkpoint)
    arguments = (tables(small_model, {}, tmp_path, 0), str(small_set), 1)
    with pytest.raises(AssertionError) as caught:
        run_ranks(1, rank_jobs.train_on, *arguments)
    (line,) = (line for line in str(caught.value).splitlines() if "TrainerError: " in line)
    assert "cannot be read: " in line
    assert "weights_only" not in line


def test_a_checkpoint_that_cannot_be_written_ends_the_run_and_the_one_before_stays(
    whole_run: tuple[Path, list[dict[str, Any]]], tmp_path: Path, small_model: Path, small_set: Path
) -> None:
    name = f"step-{STOPPED:08d}"
    shutil.copytree(whole_run[0] / name, tmp_path / name)
    (tmp_path / f"step-{NUM_STEPS:08d}.partial").write_text("in the way")
    chosen = tables(small_model, {"dp_size": 2}, tmp_path, NUM_STEPS)
    with pytest.raises(AssertionError, match=r"TrainerError: .*partial: cannot be written: .*room"):
        run_ranks(2, rank_jobs.train_on, chosen, str(small_set), 2)
    assert newest(tmp_path) == tmp_path / name


def test_another_run_in_the_same_directory_is_found_out(
    tmp_path: Path, small_model: Path, small_set: Path
) -> None:
    chosen = tables(small_model, {}, tmp_path, 0)
    chosen["run"]["steps"] = 1
    with pytest.raises(AssertionError, match=r"step-00000001: is there already: another run"):
        run_ranks(1, rank_jobs.train_beside_another, chosen, str(small_set))


def test_a_rank_that_leaves_while_others_load_does_not_mean_damage(
    whole_run: tuple[Path, list[dict[str, Any]]], small_model: Path, small_set: Path
) -> None:
    chosen = tables(small_model, {}, whole_run[0], 0)
    with pytest.raises(AssertionError, match="\nRuntimeError: Connection closed by peer"):
        run_ranks(1, rank_jobs.load_without_a_peer, chosen, str(small_set))


def test_what_a_killed_run_left_of_a_checkpoint_is_no_part_of_the_next(
    tmp_path: Path, small_model: Path, small_set: Path
) -> None:
    partial = tmp_path / "step-00000001.partial"
    partial.mkdir()
    (partial / "__9_0.distcp").write_text("of a tenth rank")
    chosen = tables(small_model, {}, tmp_path, 0)
    chosen["run"]["steps"] = 1
    run_ranks(1, rank_jobs.train_on, chosen, str(small_set), 1)
    found = sorted(path.name for path in (tmp_path / "step-00000001").iterdir())
    assert found == [".metadata", "__0_0.distcp", "digests.json", "run.json"]
    assert not partial.exists()
