"""One small configuration and one undisturbed build of it, shared by the jobs' tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from jobs.build import build
from pipeline.config import RunConfig
from tests.jobs.small_run import QUIET, small_config


@pytest.fixture(scope="session")
def config(tmp_path_factory: pytest.TempPathFactory) -> RunConfig:
    return small_config(tmp_path_factory.mktemp("corpus"))


@pytest.fixture(scope="session")
def built(config: RunConfig, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An undisturbed build."""
    root = tmp_path_factory.mktemp("built")
    assert build(config, root, QUIET).finished
    return root
