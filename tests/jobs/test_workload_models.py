"""Sets planned with the work of real layers, or measured: built, verified, planned anew."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from jobs.build import build
from jobs.extend import extend
from jobs.replan import replan
from pipeline.config import ConfigError, JobSettings, RunConfig
from pipeline.inspect import inspect
from pipeline.report import report
from pipeline.settings.cluster import WorkloadSettings
from pipeline.shard.manifest import load_manifest
from pipeline.verify import verify
from tests.jobs.small_chains import tiny_config
from tests.jobs.small_run import QUIET, digests
from tests.pipeline.test_workloads import MODEL, PROFILE

FILES = {"model_config": MODEL, "profile": PROFILE}


def config_with(config: RunConfig, **fields: Any) -> RunConfig:
    workload = WorkloadSettings.model_validate(fields)
    return config.model_copy(update={"workload": workload})


@pytest.mark.parametrize("key", FILES)
def test_a_set_holds_its_model_and_needs_the_file_no_more(
    key: str, config: RunConfig, built: Path, tmp_path: Path
) -> None:
    file, root = tmp_path / "given.json", tmp_path / "set"
    file.write_text(json.dumps(FILES[key]))
    config = config_with(config, **{key: str(file)}, constant_tokens=2)
    assert build(config, root, QUIET).finished
    before = digests(root)
    assert build(config, root, QUIET).finished
    assert digests(root) == before
    changed = {name for name in before if before[name] != digests(built).get(name)}
    assert "plan/00000.parquet" in changed
    file.unlink()
    verify(root)
    model = load_manifest(root).workload
    assert model.model == {"model_config": "layers", "profile": "profile"}[key]
    replan(root, (3,), "per_document", QUIET, JobSettings(executor="local"))
    verify(root)
    assert set(report(root)["cp"]) == {"2", "3", "4"}
    figures = inspect(root, step=0)
    pieces = sum(piece["workload"] for piece in figures["pieces"])
    assert figures["workload"] == pytest.approx(pieces + model.constant / 256)


@pytest.mark.parametrize("key", FILES)
def test_a_chain_goes_on_with_its_model_when_the_file_is_gone_or_another(
    key: str, tmp_path: Path
) -> None:
    file, root = tmp_path / "given.json", tmp_path / "set"
    file.write_text(json.dumps(FILES[key]))
    packing = {"num_micro_batches": 2, "context_length": 16, "policy": "reorder"}
    config = tiny_config(
        tmp_path,
        sources={"short": {"max_epochs": 9}},
        packing=packing,
        workload={key: str(file)},
        mixture={"target_tokens": 150},
    )
    build(config, root, QUIET)
    model = load_manifest(root).workload
    for content in ("{", None):  # another file, and none
        file.unlink() if content is None else file.write_text(content)
        assert extend(config, root, QUIET).finished
        verify(root)
    assert load_manifest(root).workload == model
    assert len(load_manifest(root).segments) == 3
    other = config_with(config, **{key: str(file)}, constant_tokens=1)
    with pytest.raises(
        ConfigError, match=r"given.json.*leave \[workload\] out to have the chain's"
    ):
        extend(other, root, QUIET)
