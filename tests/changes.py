"""Ways to break a set on purpose: each takes a `SetData` and leaves a consistent lie."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipeline.verify import VerifyError, verify
from tests.fixture_set import N, SetData, make_set

Change = Callable[[SetData], None]
PLAN, SHARD, CP = "plan/00000.parquet", "shards/00000.parquet", "cp=2/00000.parquet"
PARTS = [
    f"{folder}/0000{part}.parquet" for folder in ("plan", "shards", "cp=2") for part in range(2)
]


def offence(directory: Path) -> VerifyError:
    with pytest.raises(VerifyError) as caught:
        verify(directory)
    return caught.value


def broken(change: Change, tmp_path: Path) -> VerifyError:
    data = make_set()
    change(data)
    return offence(data.write(tmp_path))


def put(table: str, column: str, row: int, value: Any, entry: int | None = None) -> Change:
    """Set a value of part 0 of `plan`, `shards` or `cp`, or one entry of a list there."""

    def change(data: SetData) -> None:
        column_values = getattr(data, table)[0][column]
        if entry is None:
            column_values[row] = value
        else:
            column_values[row] = list(column_values[row])
            column_values[row][entry] = value

    return change


def add(table: str, column: str, row: int, entry: int | None = None, more: int = 1) -> Change:
    def change(data: SetData) -> None:
        value = getattr(data, table)[0][column][row]
        put(table, column, row, (value if entry is None else value[entry]) + more, entry)(data)

    return change


def both(*changes: Change) -> Change:
    return lambda data: [change(data) for change in changes] and None


def segment(**fields: Any) -> Change:
    return lambda data: data.manifest["segments"][0].update(fields)


def swap_slots(step: int, tables: tuple[str, ...] = ("plan", "shards", "cp")) -> Change:
    def change(data: SetData) -> None:
        for table in tables:
            for name, column in getattr(data, table)[0].items():
                if name not in ("step", "slot"):
                    a, b = step * N, step * N + 1
                    column[a], column[b] = column[b], column[a]

    return change
