"""What a row group holds, decoded once for all its rows, and rows of it, singly or together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TypeAlias

import numpy as np

from pipeline.shard import schema
from pipeline.shard.spans import spans


@dataclass(frozen=True, slots=True, eq=False)
class Ragged:
    """A list column: row i is `values[offsets[i] : offsets[i + 1]]`."""

    values: np.ndarray
    offsets: np.ndarray


Column: TypeAlias = np.ndarray | Ragged | list[str]


class RowGroup:
    """The columns of a row group whose bytes are intact, each decoded when first asked for.

    Tokens come alone, and what is said about a micro-batch together, since ranks need the one and
    not the other; all else comes at once.
    """

    def __init__(
        self, names: list[str], decode: Callable[[RowGroup, list[str]], dict[str, Column]]
    ) -> None:
        self._kinds = [[name for name in names if _kind(name) == kind] for kind in range(3)]
        self._decode = decode
        self._columns: dict[str, Column] = {}

    def column(self, name: str) -> Column:
        if name not in self._columns:
            self._columns |= self._decode(self, self._kinds[_kind(name)])
        return self._columns[name]

    def lists(self, name: str) -> Ragged:
        """A list column."""
        column = self.column(name)
        assert isinstance(column, Ragged)
        return column

    def integers(self, name: str) -> np.ndarray:
        """A column with an integer a row."""
        column = self.column(name)
        assert isinstance(column, np.ndarray)
        return column


def _kind(name: str) -> int:
    return 2 if name == schema.TOKENS else 1 if name in schema.ABOUT else 0


@dataclass(frozen=True, slots=True, eq=False)
class Row:
    """One row of a row group."""

    group: RowGroup
    index: int

    def list_of(self, name: str) -> np.ndarray:
        """A list column's values, a read-only view."""
        column = self.group.lists(name)
        return column.values[column.offsets[self.index] : column.offsets[self.index + 1]]

    def integer(self, name: str) -> int:
        return int(self.group.integers(name)[self.index])

    def text(self, name: str) -> str:
        column = self.group.column(name)
        assert isinstance(column, list)
        return column[self.index]


class Rows:
    """Some rows, in any order; what a column holds of them comes as one array.

    Args:
        rows: at least one; those of a row group that follow each other are read together.
    """

    def __init__(self, rows: Sequence[Row]) -> None:
        self._rows = rows
        runs = [(group, list(run)) for group, run in groupby(rows, key=lambda row: row.group)]
        self._runs = [(group, np.array([row.index for row in run])) for group, run in runs]

    def each(self, name: str) -> list[np.ndarray]:
        """A list column's values, row by row, as read-only views."""
        return [row.list_of(name) for row in self._rows]

    def values(self, name: str) -> np.ndarray:
        """A list column's values, one row after the other."""
        return _end_to_end([_values(group.lists(name), index) for group, index in self._runs])

    def lengths(self, name: str) -> np.ndarray:
        """How many values a list column has in each row; integers, (rows,)."""
        columns = [(group.lists(name).offsets, index) for group, index in self._runs]
        return _end_to_end([offsets[index + 1] - offsets[index] for offsets, index in columns])

    def integers(self, name: str) -> np.ndarray:
        """A column with an integer a row; (rows,)."""
        return _end_to_end([group.integers(name)[index] for group, index in self._runs])


def _values(column: Ragged, index: np.ndarray) -> np.ndarray:
    starts, stops = column.offsets[index], column.offsets[index + 1]
    if len(index) == 1:
        return column.values[starts[0] : stops[0]]
    return column.values[spans(starts, stops - starts)]


def _end_to_end(arrays: list[np.ndarray]) -> np.ndarray:
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)
