"""Law 5: bytes depend on configuration and corpora alone. Order, place, time and chance leak in."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from jobs import tokenizing
from jobs.executor import LocalExecutor
from packer import cut_source
from packer.packing import packer as packer_module
from packer.packing.backlog import Backlog, Filled
from packer.packing.config import PackingConfig
from packer.workload import Workload
from pipeline.config import RunConfig
from pipeline.reading.splits import Split
from pipeline.shard import writer
from pipeline.shard.digests import content_sha256
from pipeline.shard.token_store import StoreError
from pipeline.stores.tokenize import StorePartReceipt
from tests.jobs.small_run import build_with, digests
from tests.laws.noticed import noticed
from tests.laws.quick import quick_config
from tests.packer.test_packing_laws import run_in_chunks
from tests.strategies import Case


class Backwards(LocalExecutor):
    """The last task is the first to begin and to end."""

    def map(self, function: Any, arguments: Sequence[tuple[Any, ...]]) -> Iterator[tuple[int, Any]]:
        for index in reversed(range(len(arguments))):
            yield index, function(*arguments[index])


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> RunConfig:
    return quick_config(tmp_path_factory.mktemp("corpus"))


@pytest.fixture(scope="module")
def expected(config: RunConfig, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Digests of an undisturbed build."""
    root = tmp_path_factory.mktemp("built")
    with pytest.MonkeyPatch.context() as patch:
        build_with(LocalExecutor(), config, root, patch)
    return digests(root)


def test_the_order_of_tasks_leaves_no_trace(
    config: RunConfig, expected: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build_with(Backwards(), config, tmp_path, monkeypatch)
    assert digests(tmp_path) == expected


def test_parts_numbered_as_tasks_come_are_noticed(
    config: RunConfig, expected: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenize, tasks = tokenizing.tokenize_split, Counter[Path]()

    def numbered(split: Split, source: Any, identity: Any, *places: Path) -> StorePartReceipt:
        number = tasks[places[0]]
        tasks[places[0]] += 1
        return tokenize(replace(split, number=number), source, identity, *places)

    monkeypatch.setattr(tokenizing, "tokenize_split", numbered)
    build_with(LocalExecutor(), config, tmp_path / "in order", monkeypatch)
    assert digests(tmp_path / "in order") == expected
    tasks.clear()
    with noticed(StoreError):
        build_with(Backwards(), config, tmp_path / "backwards", monkeypatch)
        assert digests(tmp_path / "backwards") == expected


def test_a_shuffle_without_its_seed_is_noticed(
    config: RunConfig, expected: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = np.random.default_rng()
    monkeypatch.setattr(cut_source, "stream_key", lambda *_: int(chance.integers(1 << 62)))
    with noticed():
        build_with(LocalExecutor(), config, tmp_path, monkeypatch)
        assert digests(tmp_path) == expected


def test_a_moment_in_the_bytes_is_noticed_and_is_not_in_the_content(
    config: RunConfig, expected: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, moments = writer.write_parquet, itertools.count()

    def stamped(table: pa.Table, path: Path, **options: Any) -> None:
        write(table.replace_schema_metadata({"moment": str(next(moments))}), path, **options)

    monkeypatch.setattr(writer, "write_parquet", stamped)
    build_with(LocalExecutor(), config, tmp_path, monkeypatch)
    found = digests(tmp_path)
    assert {name for name in found if found[name] != expected[name]} > {
        name for name in found if name.startswith(("plan/", "shards/"))
    }
    plain = pa.table({"step": [1, 2]})
    writer.write_parquet(plain, tmp_path / "stamped.parquet")
    assert content_sha256(tmp_path / "stamped.parquet") == content_sha256(plain)


def test_ties_that_follow_the_chunks_of_the_stream_are_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = PackingConfig(num_micro_batches=2, context_length=8, max_tokens=8)
    case = Case(lengths=(8,) * 40, config=config, workload=Workload(crossover=5))
    borders = [0, 7, 21, 40]
    whole = run_in_chunks("concat", case, [0, 40])
    assert run_in_chunks("concat", case, borders) == whole
    policy_of = packer_module.policy_of

    def unstable(name: str) -> Any:
        fill = policy_of(name)

        def filled(backlog: Backlog, *arguments: Any) -> Filled:
            """Of equal pieces, the one that was there first in an even chunk runs last."""
            found = fill(backlog, *arguments)
            if found.steps is None or len(backlog.pieces) % 2:
                return found
            order = np.arange(len(found.steps.pieces))
            order[:2] = order[1::-1]
            return replace(found, steps=replace(found.steps, pieces=found.steps.pieces.take(order)))

        return filled

    monkeypatch.setattr(packer_module, "policy_of", unstable)
    assert run_in_chunks("concat", case, [0, 40]) != whole
    assert run_in_chunks("concat", case, borders) != run_in_chunks("concat", case, [0, 40])
