"""What is refused, before any rank waits for another, in one line that says what to do."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from pipeline.shard.tables import FormatError, NotInSet
from tests.trainer.small_sets import settings, write_model
from trainer.errors import TrainerError
from trainer.model_config import model_config
from trainer.prepare import prepare
from trainer.settings import load_settings, parse_settings


def refused(
    model: Path, shards: Path, error: type[Exception], message: str, **tables: dict[str, Any]
) -> None:
    chosen = parse_settings(settings(model, **tables))
    with pytest.raises(error, match=message):
        prepare(chosen, shards, {"WORLD_SIZE": str(chosen.mesh.world_size)})


@pytest.mark.parametrize(
    ("tables", "error", "message"),
    [
        ({"mesh": {"cp_size": 3}}, NotInSet, "steelyard replan .* --cp-size 3"),
        ({"mesh": {"dp_size": 3}}, NotInSet, r"does not divide the 4 .* use one of \[1, 2, 4\]"),
        ({"mesh": {"tp_size": 4}}, TrainerError, "2 key-value heads"),
        ({"mesh": {"pp_size": 5}}, TrainerError, "pp_size is 5, the model has 4 layers"),
        ({"run": {"steps": 10_000}}, TrainerError, "run.steps is 10000, the set has"),
        ({"run": {"device": "cuda:7"}}, TrainerError, "no CUDA device 7"),
        ({"run": {"attention": "torch"}}, TrainerError, "CUDA"),
    ],
    ids=str,
)
def test_a_mesh_that_model_set_or_machine_do_not_fit_is_refused(
    tables: dict[str, Any],
    error: type[Exception],
    message: str,
    small_set: Path,
    small_model: Path,
) -> None:
    refused(small_model, small_set, error, message, **tables)


def test_processes_that_are_not_the_mesh_are_refused(small_set: Path, small_model: Path) -> None:
    chosen = parse_settings(settings(small_model, mesh={"cp_size": 2, "tp_size": 2}))
    with pytest.raises(TrainerError, match=r"are 4 ranks, but there are 2 processes; .*torchrun"):
        prepare(chosen, small_set, {"WORLD_SIZE": "2"})
    with pytest.raises(TrainerError, match="there are 1 processes"):
        prepare(chosen, small_set, {})


def test_a_place_where_no_checkpoint_can_be_written_is_refused_before_the_first_step(
    small_set: Path, small_model: Path, tmp_path: Path
) -> None:
    for place in (small_model, small_model / "below", Path("/proc/none")):
        checkpoint = {"directory": str(place)}
        message = f"{place}: checkpoints cannot be written here: .*; name another"
        refused(small_model, small_set, TrainerError, message, checkpoint=checkpoint)
    settled = {"directory": str(tmp_path / "a" / "b")}
    chosen = parse_settings(settings(small_model, checkpoint=settled))
    assert prepare(chosen, small_set, {}).resume is None
    assert [path.name for path in (tmp_path / "a" / "b").iterdir()] == ["lock"]


def test_a_vocabulary_larger_than_the_models_is_refused(small_set: Path, tmp_path: Path) -> None:
    model = write_model(tmp_path, vocab_size=100)
    refused(model, small_set, TrainerError, "ids below 3.., the model's vocab_size is 100")
    model = write_model(tmp_path, vocab_size=321)
    refused(model, small_set, TrainerError, "raise vocab_size to 322", mesh={"tp_size": 2})


def test_a_set_that_is_not_there_is_refused(tmp_path: Path, small_model: Path) -> None:
    refused(small_model, tmp_path, FormatError, "no finished set here")


def test_models_that_would_be_built_otherwise_than_their_config_says_are_refused() -> None:
    config = {
        "model_type": "llama", "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1,
        "num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": 9,
    }  # fmt: skip
    assert model_config(config).matrix_parameters() == 2 * 8 * 4 * 3 + 3 * 64 + 72
    for change, message in (
        ({"model_type": "qwen3"}, "builds llama and mistral"),
        ({"tie_word_embeddings": True}, "tie_word_embeddings is True"),
        ({"attention_bias": True}, "attention_bias"),
        ({"rope_scaling": {"rope_type": "llama3"}}, "rope_type is 'llama3'"),
        ({"rope_scaling": "linear"}, "rope_scaling is 'linear'; it must be one object"),
        ({"rope_parameters": {"full_attention": {"rope_theta": 1e6}}}, "one object for all layers"),
        ({"layer_types": 3}, "layers of kind 3"),
        ({"vocab_size": None}, "vocab_size is None"),
        ({"num_hidden_layers": 0}, "num_hidden_layers is 0; it must be a whole number, 1 or more"),
        ({"rope_theta": math.nan}, "rope_theta is nan; it must be a positive, finite number"),
        ({"rms_norm_eps": 10**400}, "rms_norm_eps is 10"),
        ({"initializer_range": True}, "initializer_range is True"),
    ):
        with pytest.raises(TrainerError, match=message):
            model_config({**config, **change})
    later = {**config, "rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}
    assert model_config(later).rope_theta == 5e5


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[model]\n", "model.config is missing"),
        ("", "model is missing"),
        ("[model]\nconfig = 'c'\n[mesh]\ncp = 2", "no setting mesh.cp"),
        ("[model]\nconfig = 'c'\n[optimizer]\nlearn = 2", "known: lr, min_lr"),
        ("[model]\nconfig = 'c'\n[runs]\n", "no setting runs; did you mean run?"),
        ("[model]\nconfig = 'c'\n[mesh]\ncp_size = '2'", "must be of type int"),
        ("[model]\nconfig = 'c'\n[mesh]\ncp_size = true", "must be of type int"),
        ("[model]\nconfig = 'c'\n[mesh]\ncp_size = 0", "cp_size is 0; it must be 1 or more"),
        ("[model]\nconfig = 'c'\n[run]\nprefetch = -1", "run.prefetch is -1; it must be 0 or more"),
        (
            "[model]\nconfig = 'c'\n[optimizer]\nlr = inf",
            "optimizer.lr is inf; .* 0 or more and finite",
        ),
        ("[model]\nconfig = 'c'\n[optimizer]\nlr = nan", "optimizer.lr is nan"),
        ("[model]\nconfig = 'c'\n[optimizer]\nlr = 1" + 400 * "0", "must be of type float"),
        ("[model]\nconfig = 'c'\n[optimizer]\nbeta2 = 1", "beta2 is 1.0; .* 0 or more and below 1"),
        ("[model]\nconfig = 'c'\n[optimizer]\nbeta1 = nan", "optimizer.beta1 is nan"),
        ("[model]\nconfig = 'c'\n[optimizer]\neps = -1e-8", "optimizer.eps is -1e-08"),
        ("[model]\nconfig = 'c'\n[run]\nprecision = 'int8'", "known are auto, bfloat16"),
        ("[model]\nconfig = 'c'\n[checkpoint]\nevery_steps = 1", "checkpoint.directory"),
        ("[model", "not TOML"),
        (f"model = {2000 * '['}", "not TOML"),
        ("model = 3", "must be a table"),
    ],
)
def test_settings_are_read_strictly(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "train.toml"
    path.write_text(text)
    with pytest.raises(TrainerError, match=message):
        load_settings(path)


def test_overrides_are_typed_as_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "train.toml"
    path.write_text("[model]\nconfig = 'c'\n")
    chosen = load_settings(path, ["mesh.cp_size=2", "optimizer.lr=1", "checkpoint.directory=out"])
    assert chosen.mesh.world_size == 2
    assert chosen.optimizer.lr == 1.0
    assert chosen.checkpoint.directory == "out"
    with pytest.raises(TrainerError, match="write it as table"):
        load_settings(path, ["steps=2"])
