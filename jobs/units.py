"""Units of work: what is not in the ledger is done, what comes back is recorded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jobs.executor import Executor
from jobs.progress import Stage
from pipeline.state.ledger import Ledger, Receipt, write_note


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """One task: its name in the ledger, its arguments, and how much of the stage it is."""

    name: str
    arguments: tuple[Any, ...]
    amount: int = 1


def run_units(
    executor: Executor,
    ledger: Ledger,
    key: str,
    function: Callable[..., Receipt],
    units: Sequence[Unit],
    stage: Stage,
    *,
    intact: Callable[[int, Receipt], bool] = lambda index, receipt: True,
    check: Callable[[int, Receipt], None] = lambda index, receipt: None,
) -> list[Receipt]:
    """Do every unit once and return their receipts in the order of `units`.

    Args:
        executor: where tasks run.
        ledger: receipts of units that are done; new ones are recorded as they come.
        key: of the stage; a receipt under another key does not count.
        function: the task; returns a JSON-able receipt.
        units: what is to be done.
        stage: progress; a receipt's `documents` and `tokens` are counted where it has them.
        intact: by a unit's place and receipt, whether its files are still there.
        check: is shown every unit's place and receipt, and may raise; what was recorded stays.
    """
    receipts: list[Receipt | None] = [None] * len(units)
    missing = []
    for index, unit in enumerate(units):
        receipt = ledger.receipt(key, unit.name) or _take_note(ledger, key, unit.name)
        if receipt is not None and intact(index, receipt):
            receipts[index] = receipt
            check(index, receipt)
            _advance(stage, unit, receipt)
        else:
            missing.append(index)
    ledger.forget(units[index].name for index in missing)
    tasks = [
        (function, ledger.note_path(units[index].name), key, units[index]) for index in missing
    ]
    for place, receipt in executor.map(_do_and_note, tasks):
        unit = units[missing[place]]
        ledger.record(key, unit.name, receipt)
        receipts[missing[place]] = receipt
        check(missing[place], receipt)
        _advance(stage, unit, receipt)
    return [receipt for receipt in receipts if receipt is not None]


def _do_and_note(function: Callable[..., Receipt], note: Path, key: str, unit: Unit) -> Receipt:
    """A worker's part: a unit that was finished is known even where its driver died meanwhile."""
    receipt = function(*unit.arguments)
    write_note(note, key, unit.name, receipt)
    return receipt


def _take_note(ledger: Ledger, key: str, name: str) -> Receipt | None:
    """Record what a worker noted."""
    receipt = ledger.noted(key, name)
    if receipt is not None:
        ledger.record(key, name, receipt)
    return receipt


def _advance(stage: Stage, unit: Unit, receipt: Receipt) -> None:
    stage.advance(
        unit.amount, documents=receipt.get("documents", 0), tokens=receipt.get("tokens", 0)
    )
