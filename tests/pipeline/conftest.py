"""The valid set that these tests read, written once for each file of them."""

from pathlib import Path

import pytest

from pipeline.shard.reader import Reader, open_plan, open_shards
from tests.fixture_set import SetData, make_set


@pytest.fixture(scope="module")
def data() -> SetData:
    """The set; tests that change what it holds make one of their own."""
    return make_set()


@pytest.fixture(scope="module")
def directory(data: SetData, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The set's files; tests that damage them write a copy of their own."""
    return data.write(tmp_path_factory.mktemp("valid") / "set")


@pytest.fixture(params=[open_shards, open_plan])
def reader(request: pytest.FixtureRequest, directory: Path) -> Reader:
    return request.param(directory)
