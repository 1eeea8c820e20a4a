"""Which runs may go on from a checkpoint: the same steps and model, whatever else has changed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pipeline.shard.reader import open_shards
from tests.fixture_contents import PARTS, VOCABULARY
from tests.fixture_set import first_and_extended, make_set
from tests.trainer.small_sets import build_set, replanned, settings, sign, write_model
from trainer.errors import TrainerError
from trainer.lineage import lineage_of, newest
from trainer.prepare import Prepared, prepare
from trainer.settings import parse_settings

STOPPED = 4


def prepared(model: Path, shards: Path, directory: Path, **tables: dict[str, Any]) -> Prepared:
    whole = settings(model, checkpoint={"directory": str(directory)}, **tables)
    return prepare(parse_settings(whole), shards, {})


def saved(model: Path, shards: Path, directory: Path) -> Path:
    """A checkpoint after some steps, without its weights, which nothing here reads."""
    run = prepared(model, shards, directory)
    assert run.resume is None
    path = directory / f"step-{STOPPED:08d}"
    path.mkdir(parents=True)
    lineage_of(
        run.reader,
        run.config,
        run.settings,
        next_step=STOPPED,
        num_steps=run.num_steps,
        precision=run.precision,
    ).write(path)
    sign(path)
    return path


def test_the_same_run_goes_on_without_a_word(
    small_set: Path, small_model: Path, tmp_path: Path
) -> None:
    path = saved(small_model, small_set, tmp_path)
    resume = prepared(small_model, small_set, tmp_path).resume
    assert resume is not None
    assert (resume.checkpoint, resume.next_step, resume.changes) == (path, STOPPED, ())


def test_the_newest_checkpoint_that_is_whole_counts(tmp_path: Path) -> None:
    assert newest(tmp_path / "nothing") is None
    for name in ("step-00000009", "step-00000010", "step-00000011.partial", "step-by-step", "x"):
        (tmp_path / name).mkdir()
    assert newest(tmp_path) == tmp_path / "step-00000010"


def test_a_set_that_was_extended_is_the_same_set(tmp_path: Path) -> None:
    first, extended = first_and_extended(make_set())
    model = write_model(tmp_path, vocab_size=VOCABULARY)
    saved(model, first.write(tmp_path / "first"), tmp_path / "checkpoints")
    grown = prepared(model, extended.write(tmp_path / "extended"), tmp_path / "checkpoints")
    assert grown.resume is not None
    assert grown.resume.next_step == STOPPED < PARTS[0]
    assert grown.resume.changes == (
        "run.steps was 5 before step 4, is 8 from there on",  # the learning rate falls over more
    )


def test_a_set_with_other_cp_plans_is_the_same_set(
    small_set: Path, small_model: Path, tmp_path: Path
) -> None:
    saved(small_model, small_set, tmp_path)
    other = replanned(small_set, "per_sequence", tmp_path / "other")
    assert prepared(small_model, other, tmp_path).resume is not None


def test_a_set_of_another_seed_is_refused(
    small_set: Path, small_model: Path, tmp_path: Path
) -> None:
    path = saved(small_model, small_set, tmp_path)
    other = build_set(tmp_path / "other", seed=1)
    with pytest.raises(TrainerError) as caught:
        prepared(small_model, other, tmp_path)
    digests = [open_shards(root).steps_digest(STOPPED) for root in (small_set, other)]
    assert len(set(digests)) == 2
    for part in (path, small_set, other, *digests, "4 steps", "another checkpoint.directory"):
        assert str(part) in str(caught.value)


def test_a_set_of_fewer_steps_is_refused(tmp_path: Path) -> None:
    first, extended = first_and_extended(make_set())
    model = write_model(tmp_path, vocab_size=VOCABULARY)
    whole, part = extended.write(tmp_path / "extended"), first.write(tmp_path / "first")
    path = saved(model, whole, tmp_path / "checkpoints")
    text = (path / "run.json").read_text().replace('"next_step": 4', '"next_step": 6')
    (path / "run.json").write_text(text)
    sign(path)
    with pytest.raises(
        TrainerError, match=r"trained on 6 steps of .*extended, .*first has 5; give"
    ):
        prepared(model, part, tmp_path / "checkpoints")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rope_theta": 5e5}, "has rope_theta 10000.0, .*config.json has 500000.0"),
        ({"rms_norm_eps": 1e-3}, "has rms_norm_eps"),
        ({"hidden_size": 32, "head_dim": 4}, "has hidden 16, .* has 32; give the model"),
    ],
    ids=str,
)
def test_another_model_is_refused(
    changes: dict[str, Any], message: str, small_set: Path, small_model: Path, tmp_path: Path
) -> None:
    saved(small_model, small_set, tmp_path)
    model = write_model(tmp_path, **changes)
    with pytest.raises(TrainerError, match=message):
        prepared(model, small_set, tmp_path)


def test_settings_that_differ_are_named(small_set: Path, small_model: Path, tmp_path: Path) -> None:
    saved(small_model, small_set, tmp_path)
    resume = prepared(
        small_model,
        small_set,
        tmp_path,
        optimizer={"weight_decay": 0.5},
        run={"precision": "float32", "steps": 5, "recompute": True},
    ).resume
    assert resume is not None
    assert [change.partition(" before")[0] for change in resume.changes] == [
        "optimizer.weight_decay was 0.1",
        f"run.steps was {open_shards(small_set).num_steps}",
        "run.precision was float64",
    ]


@pytest.mark.parametrize("text", [None, "{", "[]", '{"next_step": 4}'])
def test_a_checkpoint_that_does_not_say_what_it_is_of_is_refused(
    text: str | None, small_set: Path, small_model: Path, tmp_path: Path
) -> None:
    path = saved(small_model, small_set, tmp_path) / "run.json"
    assert json.loads(path.read_text())["shards"] == str(small_set)
    path.unlink()
    if text is not None:
        path.write_text(text)
    with pytest.raises(TrainerError, match=r"its run.json is missing or damaged.*: remove it"):
        prepared(small_model, small_set, tmp_path)
