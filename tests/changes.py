"""Ways to break a set on purpose: each takes a `SetData` and leaves a consistent lie."""

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipeline.verify import VerifyError, verify
from tests.fixture_contents import N
from tests.fixture_set import SetData, make_set
from tests.fixture_tables import predicted_work
from tests.reference_padding import padded_head_tail

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


def check_is_found(change: Change, where: str, message: str, tmp_path: Path) -> None:
    """Of a set that is changed like this, verify says where it is wrong, and how."""
    error = broken(change, tmp_path)
    assert where in str(error)
    assert message in str(error)


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


def put_chunks(row: int, *values: tuple[int, int, int, int]) -> Change:
    """Replace a row's chunks by these (cp_rank, piece, start, stop)."""
    names = ("cp_rank", "piece", "start", "stop")
    return both(
        *(put("cp", name, row, [value[i] for value in values]) for i, name in enumerate(names))
    )


def segment(**fields: Any) -> Change:
    return lambda data: data.manifest["segments"][0].update(fields)


def padded(multiple: int, max_tokens: int = 1_000) -> Change:
    """CP plans with pads in the place of those without; row 0 is one piece, of 16 tokens."""

    def change(data: SetData) -> None:
        segment(max_tokens=max_tokens)(data)
        data.manifest["cp"]["2"].update(strategy="padded_head_tail", pad_multiple=multiple)
        for plan, columns in zip(data.plan, data.cp, strict=True):
            rows = [
                padded_head_tail([b - a for a, b in itertools.pairwise(cu_seqlens)], 2, multiple)
                for cu_seqlens in plan["cu_seqlens"]
            ]
            for i, name in enumerate(("cp_rank", "piece", "start", "stop")):
                columns[name] = [[chunk[i] for chunk in chunks] for chunks in rows]
            columns["strategy"] = ["padded_head_tail"] * len(rows)
            columns["predicted"] = [predicted_work(chunks) for chunks in rows]

    return change


def swap_slots(step: int, tables: tuple[str, ...] = ("plan", "shards", "cp")) -> Change:
    def change(data: SetData) -> None:
        for table in tables:
            for name, column in getattr(data, table)[0].items():
                if name not in ("step", "slot"):
                    a, b = step * N, step * N + 1
                    column[a], column[b] = column[b], column[a]

    return change
