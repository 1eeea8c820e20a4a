"""Units of work: done once, also when the driver dies between a unit's end and its receipt."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from jobs.executor import LocalExecutor
from jobs.progress import Reporter
from jobs.units import Unit, run_units
from pipeline.state.ledger import Ledger
from tests.jobs.small_run import DyingExecutor

DONE: Counter[str] = Counter()


def work(name: str) -> dict[str, str]:
    DONE[name] += 1
    return {"name": name}


def run(executor: LocalExecutor, path: Path, key: str = "key") -> list[dict[str, str]]:
    units = [Unit(name=f"part/{i}", arguments=(f"part/{i}",)) for i in range(4)]
    with (
        Ledger(path) as ledger,
        Reporter(quiet=True).stage("work", total=4, unit="parts") as stage,
    ):
        return run_units(executor, ledger, key, work, units, stage)


@pytest.fixture(autouse=True)
def nothing_done() -> None:
    DONE.clear()


def test_what_a_worker_finished_for_a_dead_driver_is_not_done_again(tmp_path: Path) -> None:
    for tasks in range(4):  # each run ends one unit that it has no time to record
        with pytest.raises(KeyboardInterrupt):
            run(DyingExecutor(0), tmp_path / "ledger")
        assert sum(DONE.values()) == tasks + 1
    assert [receipt["name"] for receipt in run(LocalExecutor(), tmp_path / "ledger")] == [
        f"part/{i}" for i in range(4)
    ]
    assert Counter(f"part/{i}" for i in range(4)) == DONE
    assert not list((tmp_path / "ledger.notes").iterdir())


def test_notes_of_other_settings_do_not_count(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(DyingExecutor(1), tmp_path / "ledger", "other key")
    run(LocalExecutor(), tmp_path / "ledger")
    assert Counter({"part/0": 2, "part/1": 2, "part/2": 1, "part/3": 1}) == DONE


def test_results_may_come_in_any_order(tmp_path: Path) -> None:
    class Backwards(LocalExecutor):
        def map(
            self, function: Any, arguments: Sequence[tuple[Any, ...]]
        ) -> Iterator[tuple[int, Any]]:
            return reversed(list(super().map(function, arguments)))

    receipts = run(Backwards(), tmp_path / "ledger")
    assert [receipt["name"] for receipt in receipts] == [f"part/{i}" for i in range(4)]
