"""Small configurations and undisturbed sets of them, shared by the jobs' tests."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from jobs.build import build
from jobs.extend import extend
from pipeline.config import RunConfig
from tests.corpora import write_jsonl
from tests.jobs.chain_sets import changed
from tests.jobs.small_run import QUIET, small_config, texts


@pytest.fixture(scope="session")
def config(tmp_path_factory: pytest.TempPathFactory) -> RunConfig:
    return small_config(tmp_path_factory.mktemp("corpus"))


@pytest.fixture(scope="session")
def built(config: RunConfig, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An undisturbed build."""
    root = tmp_path_factory.mktemp("built")
    assert build(config, root, QUIET).finished
    return root


@pytest.fixture(scope="session")
def chain_corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("corpus")


@pytest.fixture(scope="session")
def first(chain_corpus: Path) -> RunConfig:
    """Of half of the documents there are."""
    return changed(
        small_config(chain_corpus),
        mixture={"target_tokens": 40_000},
        packing={"policy": "wlb", "max_tokens": 560},
    )


@pytest.fixture(scope="session")
def second(first: RunConfig, chain_corpus: Path) -> RunConfig:
    """Other N and S, another policy, one source less and a new one, weighted."""
    late = write_jsonl(chain_corpus / "late.jsonl", texts(7, 60))
    lines = first.sources[0].model_copy(update={"weight": 3.0})
    new = lines.model_copy(update={"name": "late", "paths": (str(late),), "weight": 1.0})
    config = changed(
        first,
        mixture={"target_tokens": 30_000, "at_source_end": "drop", "seed": 5},
        packing={"policy": "concat", "num_micro_batches": 6, "context_length": 200,
                 "max_tokens": None},
        shards={"row_group_tokens": 400, "shard_tokens": 6_000},
    )  # fmt: skip
    return config.model_copy(update={"sources": (new, lines)})


@pytest.fixture(scope="session")
def before(first: RunConfig, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("chain") / "before"
    build(first, root, QUIET)
    return root


@pytest.fixture(scope="session")
def chain(before: Path, second: RunConfig) -> Path:
    root = before.with_name("chain")
    shutil.copytree(before, root)
    assert extend(second, root, QUIET).finished
    return root
