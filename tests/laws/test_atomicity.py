"""Law 6: a part exists when the ledger says so. Power fails, renames and receipts are left out."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from jobs.executor import LocalExecutor
from pipeline.config import RunConfig
from pipeline.files import atomic
from pipeline.state import journal
from pipeline.state import ledger as ledger_module
from pipeline.tokenizer.identity import TokenizerIdentity
from pipeline.verify import VerifyError, verify
from tests.corpora import source_of, write_jsonl
from tests.jobs import test_documents
from tests.jobs.small_run import DyingExecutor, build_with, digests
from tests.laws.noticed import noticed
from tests.laws.quick import quick_config
from tests.pipeline import test_ledger, test_publish, test_sources

MANY = 10_000
NO_SYNC = SimpleNamespace(fsync=lambda file: None, replace=os.replace)
"""What a module that never syncs sees as `os`."""


class Disk:
    """Which bytes of each file a loss of power leaves: those that were there when it was synced.

    Renames are taken to last, in their order; no file system promises less that is in use.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._synced: dict[tuple[int, int], int] = {}
        sync = os.fsync

        def fsync(file: int) -> None:
            sync(file)
            status = os.fstat(file)
            self._synced[status.st_dev, status.st_ino] = status.st_size

        monkeypatch.setattr(os, "fsync", fsync)

    def lose_power(self, root: Path) -> int:
        """Cut every file off where it was synced last; how many lost something."""
        losses = 0
        for path in root.rglob("*"):
            if path.is_file():
                status = path.stat()
                size = self._synced.get((status.st_dev, status.st_ino), 0)
                losses += size < status.st_size
                os.truncate(path, min(size, status.st_size))
        return losses


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> RunConfig:
    return quick_config(tmp_path_factory.mktemp("corpus"))


@pytest.fixture(scope="module")
def whole(
    config: RunConfig, tmp_path_factory: pytest.TempPathFactory
) -> tuple[dict[str, str], int]:
    """Digests of an undisturbed build, and how many tasks it has."""
    root, executor = tmp_path_factory.mktemp("built"), DyingExecutor(MANY)
    with pytest.MonkeyPatch.context() as patch:
        build_with(executor, config, root, patch)
    return digests(root), MANY - executor.left


def killed(tasks: int, config: RunConfig, root: Path, patch: pytest.MonkeyPatch) -> None:
    with pytest.raises(KeyboardInterrupt):
        build_with(DyingExecutor(tasks), config, root, patch)


@pytest.mark.parametrize("part", [0.3, 0.9])
def test_power_may_fail_anywhere_and_no_finished_task_is_lost(
    part: float,
    config: RunConfig,
    whole: tuple[dict[str, str], int],
    disk: Disk,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    expected, total = whole
    done = int(total * part)
    killed(done, config, tmp_path, monkeypatch)
    disk.lose_power(tmp_path)
    again = DyingExecutor(MANY)
    build_with(again, config, tmp_path, monkeypatch)
    assert done + MANY - again.left <= total
    assert digests(tmp_path) == expected
    disk.lose_power(tmp_path)
    assert digests(tmp_path) == expected


def test_a_ledger_that_is_not_synced_is_noticed(
    config: RunConfig,
    whole: tuple[dict[str, str], int],
    disk: Disk,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(journal, "os", NO_SYNC)
    with noticed():
        test_power_may_fail_anywhere_and_no_finished_task_is_lost(
            0.5, config, whole, disk, tmp_path, monkeypatch
        )


def test_parts_that_are_not_synced_are_noticed(
    config: RunConfig, disk: Disk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(atomic, "os", NO_SYNC)
    build_with(LocalExecutor(), config, tmp_path, monkeypatch)
    verify(tmp_path)
    assert disk.lose_power(tmp_path) > 50
    with pytest.raises((VerifyError, ValueError)):
        verify(tmp_path)


def test_a_part_written_under_its_own_name_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextmanager
    def direct(path: Path) -> Iterator[Path]:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield path

    check = test_publish.test_a_failed_write_leaves_neither_the_file_nor_its_temporary
    (tmp_path / "right").mkdir()
    check(tmp_path / "right")
    monkeypatch.setattr(test_publish, "atomic_path", direct)
    (tmp_path / "wrong").mkdir()
    with noticed():
        check(tmp_path / "wrong")


def test_receipts_that_are_not_forgotten_are_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check = test_ledger.test_another_configuration_takes_a_unit_over
    (tmp_path / "right").mkdir()
    check(tmp_path / "right")
    monkeypatch.setattr(ledger_module.Ledger, "forget", lambda ledger, units: None)
    with noticed():
        check(tmp_path / "wrong")


def test_receipts_of_any_key_are_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def receipt(ledger: Any, key: str, unit: str) -> Any:
        return ledger._receipts.get(unit, (key, None))[1]

    monkeypatch.setattr(ledger_module.Ledger, "receipt", receipt)
    with noticed():
        test_ledger.test_receipts_come_back_under_their_key_only(tmp_path)


def test_a_ledger_that_believes_damaged_lines_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    test_ledger.test_nothing_after_a_damaged_line_is_believed(tmp_path / "right")
    parse = ledger_module._parse

    def trusting(line: bytes) -> Any:
        body = line.partition(b" ")[2].rstrip(b"\n")
        return parse(ledger_module._checksum(body.decode()).encode() + b" " + body + b"\n")

    monkeypatch.setattr(ledger_module, "_parse", trusting)
    with noticed():
        test_ledger.test_nothing_after_a_damaged_line_is_believed(tmp_path / "wrong")


@pytest.mark.parametrize("forgotten", ["tokenizer", "content", "split_bytes"])
def test_a_store_key_that_forgets_what_tokens_depend_on_is_noticed(
    forgotten: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key_of = test_sources.store_key

    def forgetful(
        source: Any, inputs: Any, digests: Any, identity: TokenizerIdentity, split_bytes: int
    ) -> str:
        if forgotten == "tokenizer":
            identity = replace(identity, eos_id=None)
        elif forgotten == "content":
            digests = ["0" * 32] * len(digests)
        else:
            split_bytes = 1
        return key_of(source, inputs, digests, identity, split_bytes)

    write_jsonl(tmp_path / "in/a.jsonl", ["x"])
    write_jsonl(tmp_path / "in/b.jsonl", ["y"])
    source = source_of(tmp_path / "in")
    monkeypatch.setattr(test_sources, "store_key", forgetful)
    with noticed():
        test_sources.TestKey().test_all_that_tokens_depend_on_is(source, tmp_path)


def test_a_plan_key_that_forgets_the_mixture_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check = test_documents.test_every_setting_of_the_mixture_makes_another_plan
    key_of = test_documents.plan_key

    def forgetful(stores: list[str], config: RunConfig) -> str:
        plain = [s.model_copy(update={"max_epochs": 1}) for s in config.sources]
        return key_of(stores, config.model_copy(update={"sources": tuple(plain)}))

    change = {"a": {"max_epochs": 1.25}}
    check(change, tmp_path)
    monkeypatch.setattr(test_documents, "plan_key", forgetful)
    with noticed():
        check(change, tmp_path)
