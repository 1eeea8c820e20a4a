"""Workload models from files, and worked out a second time by what verifies."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packer.profile import Profile, Table
from packer.workload import LONGEST_PIECE, SCALE, Span, Workload
from pipeline.config import ConfigError, RunConfig
from pipeline.planning.plan import plan_key
from pipeline.planning.workloads import resolve_workload
from pipeline.settings.cluster import HardwareSettings, WorkloadSettings
from pipeline.shard.manifest import Manifest, WorkloadModel
from pipeline.verify import verify
from pipeline.verify.workloads import piece_workloads
from tests.changes import broken
from tests.fixture_contents import CROSSOVER
from tests.fixture_set import SetData, make_set

MODEL = {
    "model_type": "gemma2",
    "head_dim": 4,
    "hidden_size": 16,
    "intermediate_size": 20,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "sliding_window": 8,
}
PROFILE = {
    "format": "steelyard-profile",
    "version": 1,
    "linear": {"tokens": [8, 16], "time": [2.0, 4.0]},
    "attention": {"tokens": [8, 16], "time": [1.0, 4.0]},
    "constant": 0.5,
}


def write(path: Path, value: Any) -> str:
    path.write_text(value if isinstance(value, str) else json.dumps(value))
    return str(path)


def settings(**fields: Any) -> WorkloadSettings:
    return WorkloadSettings.model_validate(fields)


def test_a_crossover_is_taken_as_it_is() -> None:
    found = resolve_workload(settings(crossover=40, constant_tokens=3))
    assert found == Workload(crossover=40, constant=3 * SCALE)


def test_a_model_gives_its_layers(tmp_path: Path) -> None:
    path = write(tmp_path / "config.json", MODEL)
    found = resolve_workload(settings(model_config=path, constant_tokens=1))
    spans = (Span(mask="window", tokens=8, crossover=248),)  # 2 x (4 x 16 + 3 x 20)
    assert found == Workload(crossover=248, spans=spans, constant=SCALE)


def test_hardware_is_in_tera_and_giga(tmp_path: Path) -> None:
    path = write(tmp_path / "config.json", MODEL)
    hardware = HardwareSettings(gemm_tflops=2.0, attention_tflops=1.0)
    assert resolve_workload(settings(model_config=path, hardware=hardware)).crossover == 124
    # A layer: 3968 FLOPs on 2 GPUs of 2 TFLOP/s = 0.992 ns; 128 bytes, half of them from the
    # other, at 64 GB/s = 1 ns. A pair: 64 FLOPs on 2 GPUs of 1 TFLOP/s, in one of two layers.
    hardware = HardwareSettings(gemm_tflops=2.0, attention_tflops=1.0, tp_size=2, tp_gb_per_s=64.0)
    found = resolve_workload(settings(model_config=path, hardware=hardware)).crossover
    assert found == int(2 * 2 * (0.992 + 1.0) / 0.032)


def test_a_profile_brings_its_constant(tmp_path: Path) -> None:
    path = write(tmp_path / "profile.json", PROFILE)
    found = resolve_workload(settings(profile=path, constant_tokens=1))
    assert found.profile == Profile(
        linear=Table(tokens=(8, 16), time=(2.0, 4.0)),
        attention=Table(tokens=(8, 16), time=(1.0, 4.0)),
    )
    assert found.constant == 3 * SCALE


@pytest.mark.parametrize(
    ("key", "text", "words"),
    [
        ("model_config", None, "No such file"),
        ("model_config", "{", "not JSON"),
        ("model_config", "[]", "not a JSON object"),
        ("model_config", "{}", "no num_hidden_layers; set workload.crossover or workload.profile"),
        ("profile", None, "No such file"),
        ("profile", "{}", 'not a profile: "format" must be'),
        ("profile", json.dumps(PROFILE | {"version": 7}), "version is 7; this program reads"),
    ],
)
def test_files_that_give_no_model_are_named(
    key: str, text: str | None, words: str, tmp_path: Path
) -> None:
    path = tmp_path / "x.json"
    if text is not None:
        write(path, text)
    with pytest.raises(ConfigError, match=words) as caught:
        resolve_workload(settings(**{key: str(path)}))
    assert str(path) in str(caught.value)


def manifest_with(model: Workload) -> Manifest:
    fields = model.as_dict()
    ends = {name: fields.pop(name) for name in ("model", "scale", "constant")}
    workload = WorkloadModel(**ends, parameters=json.loads(json.dumps(fields)))
    return cast(Manifest, SimpleNamespace(workload=workload, directory=Path()))


points = st.lists(st.tuples(st.integers(1, 5000), st.floats(1e-3, 1e3)), min_size=2, max_size=8)


def table(points: list[tuple[int, float]], last: float | None = None) -> Table:
    """Points whose tokens and times increase by so much, times scaled to end at `last`."""
    tokens, time = np.cumsum([step for step, _ in points]), np.cumsum([time for _, time in points])
    scale = 1.0 if last is None else last / time[-1]
    return Table(tokens=tuple(tokens.tolist()), time=tuple((time * scale).tolist()))


@st.composite
def profiles(draw: st.DrawFn) -> Profile:
    linear, attention = table(draw(points)), draw(points)
    share = draw(st.floats(1e-3, 0.5))  # of the longest piece's time a token
    last = share * linear.time[-1] / linear.tokens[-1] * sum(step for step, _ in attention)
    return Profile(linear=linear, attention=table(attention, last))


spans = st.builds(
    Span,
    mask=st.sampled_from(["window", "chunk"]),
    tokens=st.integers(1, 300),
    crossover=st.integers(1, 10_000),
)
models = st.one_of(
    st.builds(Workload, crossover=st.integers(1, LONGEST_PIECE)),
    st.builds(
        Workload,
        crossover=st.none() | st.integers(1, 10_000),
        spans=st.lists(spans, max_size=3).map(tuple),
    ),
    st.builds(Workload, crossover=st.none(), profile=profiles()),
)


@given(model=models, lengths=st.lists(st.integers(1, 40_000), min_size=1, max_size=30))
def test_what_verifies_works_out_the_same_integers(model: Workload, lengths: list[int]) -> None:
    tokens = np.array([*lengths, LONGEST_PIECE])
    np.testing.assert_array_equal(piece_workloads(manifest_with(model), tokens), model.of(tokens))


def workload(**fields: Any):  # type: ignore[no-untyped-def]
    return lambda data: data.manifest["workload"].update(fields)


def test_the_same_work_by_another_model_passes(tmp_path: Path) -> None:
    data = make_set()
    workload(model="layers", spans=[])(data)
    verify(data.write(tmp_path))


def profile_of(data: SetData) -> None:
    """A profile that is the fixture's quadratic."""
    tokens = [4, 16]
    data.manifest["workload"] = {
        "model": "profile",
        "scale": 256,
        "constant": data.manifest["workload"]["constant"],
        "linear": {"tokens": tokens, "time": [d * CROSSOVER for d in tokens]},
        "attention": {"tokens": tokens, "time": [d * d for d in tokens]},
    }


def test_a_profile_of_the_same_work_passes(tmp_path: Path) -> None:
    data = make_set()
    profile_of(data)
    verify(data.write(tmp_path))


def another_profile(data: SetData) -> None:
    profile_of(data)
    data.manifest["workload"]["attention"]["time"][1] += 1


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (workload(model="cubic"), "can only re-compute 'quadratic', 'layers', 'profile'"),
        (
            workload(model="layers", spans=[{"mask": "window", "tokens": 3, "crossover": 9}]),
            "workload is",
        ),
        (another_profile, "workload is"),
        (workload(model="layers"), "the workload model is malformed"),
        (workload(model="profile"), "the workload model is malformed"),
        (workload(crossover="x"), "the workload model is malformed"),
        (workload(crossover=0), "the workload model is malformed"),
        (workload(scale=0), "scale is 0"),
    ],
)
def test_another_model_than_the_plans_is_found(change: Any, words: str, tmp_path: Path) -> None:
    assert words in str(broken(change, tmp_path))


def test_a_plan_depends_on_what_the_file_holds_not_on_where_it_is(tmp_path: Path) -> None:
    def key(**workload: Any) -> str:
        fields = {
            "tokenizer": {"path": "t.json"},
            "sources": [{"name": "a", "paths": ["a.jsonl"]}],
            "packing": {"num_micro_batches": 4, "context_length": 64},
            "workload": workload,
        }
        return plan_key(["key"], RunConfig.model_validate(fields))

    first = write(tmp_path / "first.json", PROFILE)
    second = write(tmp_path / "second.json", PROFILE | {"about": "the same, measured elsewhere"})
    third = write(tmp_path / "third.json", PROFILE | {"constant": 1.0})
    model = write(tmp_path / "model.json", MODEL)
    hardware = {"gemm_tflops": 2.0, "attention_tflops": 1.0}
    assert key(profile=first) == key(profile=second)
    keys = [
        key(profile=first),
        key(profile=third),
        key(profile=first, constant_tokens=1),
        key(crossover=248),
        key(model_config=model),
        key(model_config=model, hardware=hardware),
    ]
    assert len(set(keys)) == len(keys)
