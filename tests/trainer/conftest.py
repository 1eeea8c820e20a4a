"""Torch on one thread: small tensors on shared cores are fastest so. And a small set and model."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.trainer.small_sets import build_set, write_model


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def small_set(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_set(tmp_path_factory.mktemp("small"))


@pytest.fixture(scope="session")
def small_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model"))
