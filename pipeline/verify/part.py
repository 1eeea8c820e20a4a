"""A part's table in flat arrays, and a way to say which row of it breaks a law."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.files.contents import parquet_source
from pipeline.shard.tables import FormatError, check_columns
from pipeline.verify.result import VerifyError


class PartTable:
    """A part of the plan, the shards or a CP plan, whole in memory.

    It holds no nulls: the content digest was checked, and there is none of a table with nulls.

    Args:
        path: the file.
        columns: the schema that the format demands.

    Raises:
        VerifyError: other columns, or not readable at all.
    """

    def __init__(self, path: Path, columns: pa.Schema) -> None:
        self.path = path
        try:
            with pq.ParquetFile(parquet_source(path)) as file:
                self.metadata = file.metadata
                check_columns(file.schema_arrow, columns, path)
                self._table = file.read(use_threads=False)
        except FormatError:
            raise
        except MemoryError:  # Arrow's is an ArrowException too, and says nothing of the file
            raise
        except (pa.ArrowException, OSError) as error:
            raise VerifyError(f"cannot be read: {error}", path=path) from error
        self.num_rows = self._table.num_rows

    @cached_property
    def first_rows(self) -> np.ndarray:
        """First row of each row group, and at the end the number of rows; (row groups + 1,)."""
        groups = range(self.metadata.num_row_groups)
        return np.cumsum([0, *(self.metadata.row_group(group).num_rows for group in groups)])

    def plain(self, name: str) -> np.ndarray:
        """A plain integer column as int64, (rows,)."""
        return self._array(name).to_numpy().astype(np.int64)

    def texts(self, name: str) -> list[str]:
        """A column of strings, one a row."""
        return self._array(name).to_pylist()

    def values(self, name: str) -> np.ndarray:
        """All values of a list column, back to back, in their own type."""
        return self._flat(name).to_numpy()

    def integers(self, name: str) -> np.ndarray:
        """All values of a list column, back to back, as int64."""
        return self.values(name).astype(np.int64)

    def offsets(self, name: str) -> np.ndarray:
        """Where each row's values begin in `values`, int64, (rows + 1,)."""
        offsets = self._array(name).offsets.to_numpy().astype(np.int64)
        return offsets - offsets[0]

    def require(self, holds: np.ndarray, say: Callable[[int], str]) -> None:
        """A law about rows.

        Args:
            holds: boolean, (rows,).
            say: what is wrong with the row of this number, and what must hold.

        Raises:
            VerifyError: for the first row that breaks it.
        """
        if not holds.all():
            row = int(np.argmin(holds))
            self.fail(row, say(row))

    def require_each(
        self, holds: np.ndarray, offsets: np.ndarray, say: Callable[[int], str]
    ) -> None:
        """A law about the entries of rows: pieces, or chunks.

        Args:
            holds: boolean, (entries,).
            offsets: where each row's entries begin, (rows + 1,).
            say: what is wrong with the entry of this number, and what must hold.

        Raises:
            VerifyError: for the first entry that breaks it.
        """
        if not holds.all():
            entry = int(np.argmin(holds))
            row = int(np.searchsorted(offsets, entry, side="right")) - 1
            self.fail(row, f"entry {entry - int(offsets[row])}: {say(entry)}")

    def fail(self, row: int, message: str) -> NoReturn:
        """Raise for a row, named by its step and slot, in its row group."""
        group = int(np.searchsorted(self.first_rows, row, side="right")) - 1
        step, slot = self.plain("step")[row], self.plain("slot")[row]
        raise VerifyError(
            f"row {row} (step {step}, slot {slot}): {message}", path=self.path, row_group=group
        )

    def _array(self, name: str) -> pa.Array:
        column = self._table.column(name)
        try:
            return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
        except pa.ArrowInvalid as error:
            raise VerifyError(
                f"column {name!r} has more than 2^31 - 1 entries or characters: {error}",
                path=self.path,
            ) from error

    def _flat(self, name: str) -> pa.Array:
        array = self._array(name)
        return array.flatten() if pa.types.is_list(array.type) else array


def row_group_of(path: Path, row: int) -> int:
    """The row group of a Parquet file that holds a row."""
    metadata = pq.read_metadata(parquet_source(path))
    for group in range(metadata.num_row_groups):
        row -= metadata.row_group(group).num_rows
        if row < 0:
            return group
    raise ValueError(f"{path} has no such row")


def spans(starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """The integers of `[start, start + length)`, span after span, int64."""
    before = np.cumsum(lengths) - lengths
    return np.arange(int(lengths.sum()), dtype=np.int64) + np.repeat(starts - before, lengths)
