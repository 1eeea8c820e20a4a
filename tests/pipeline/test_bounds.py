"""What of the configuration a plan depends on, and what the packer gets of it."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from packer.schedule import Schedule
from pipeline.config import RunConfig
from pipeline.config_file import load_config
from pipeline.planning.bounds import packing_config, settings_used, warn_of_one_rank

CONFIG = """
[tokenizer]
vocab_size = 100
[[sources]]
name = "ids"
paths = ["ids.parquet"]
token_column = "ids"
[packing]
num_micro_batches = 8
context_length = 1000
[workload]
crossover = 100
[parallel]
dp_size = 2
pp_size = 4
"""


def config(tmp_path: Path, *changes: str) -> RunConfig:
    path = tmp_path / "run.toml"
    path.write_text(CONFIG)
    return load_config(path, changes)


def test_look_ahead_s_plan_depends_on_the_cluster_whose_time_it_minimises(tmp_path: Path) -> None:
    cluster = {"dp_size": 2, "pp_size": 4, "virtual_stages": 1, "coupling": "gradient_sync"}
    assert settings_used(config(tmp_path))["schedule"] == cluster
    assert packing_config(config(tmp_path)).schedule == Schedule(dp_size=2, pp_size=4)


@pytest.mark.parametrize("change", ["packing.objective=max", "packing.policy=wlb"])
def test_others_do_not(tmp_path: Path, change: str) -> None:
    assert "schedule" not in settings_used(config(tmp_path, change))
    one = config(tmp_path, change, "parallel.dp_size=1")
    assert settings_used(one) == settings_used(config(tmp_path, change))


def test_without_a_schedule_the_heaviest_micro_batch_counts(tmp_path: Path) -> None:
    assert packing_config(config(tmp_path, "packing.objective=max")).schedule is None


def test_settings_of_another_policy_are_not_used(tmp_path: Path) -> None:
    used = settings_used(config(tmp_path, "packing.policy=reorder"))
    assert not used.keys() & {"thresholds", "window_steps", "token_band", "global_batches"}
    assert "token_band" in settings_used(config(tmp_path))


def test_one_rank_has_nothing_to_gain_and_is_told(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        warn_of_one_rank(1, 2, "[parallel]", "packing.objective")
        assert not caplog.records
        warn_of_one_rank(1, 1, "[parallel]", "packing.objective")
    assert "set [parallel] to your cluster" in caplog.text
