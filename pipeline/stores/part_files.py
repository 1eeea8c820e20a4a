"""Files of a token store that are written bit by bit: tables, and tokens with their digests."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.files.atomic import atomic_path
from pipeline.shard.digests import xxh3_128
from pipeline.shard.schema import BLOCK_BYTES

_GROUP_ROWS = 65_536


class TableWriter:
    """A Parquet file written row group by row group; where rows came together leaves no trace."""

    def __init__(self, path: Path, columns: pa.Schema):
        self._columns = columns
        self._waiting: list[pa.Table] = []
        self._rows = 0
        self._writer = pq.ParquetWriter(
            path,
            columns,
            compression="zstd",
            compression_level=1,
            use_dictionary=False,
            write_statistics=False,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self._rows and error[0] is None:
            self._write(pa.concat_tables(self._waiting))
        self._writer.close()

    def append(self, columns: Sequence[np.ndarray | list[Any]]) -> None:
        self.append_table(pa.table(list(columns), schema=self._columns))

    def append_table(self, table: pa.Table) -> None:
        if not table.num_rows:
            return
        self._waiting.append(table)
        self._rows += table.num_rows
        whole = self._rows - self._rows % _GROUP_ROWS
        if whole:
            table = pa.concat_tables(self._waiting)
            self._write(table.slice(0, whole))
            self._rows -= whole
            self._waiting = [table.slice(whole)]

    def _write(self, table: pa.Table) -> None:
        self._writer.write_table(table.combine_chunks(), row_group_size=_GROUP_ROWS)


@contextmanager
def table_at(path: Path, columns: pa.Schema) -> Iterator[TableWriter]:
    """A table that appears at `path` when the block ends, or not at all."""
    with atomic_path(path) as temporary, TableWriter(temporary, columns) as table:
        yield table


class BlockedFile:
    """A file of tokens with a digest a block, and one of all."""

    def __init__(self, file: BinaryIO, blocks: TableWriter):
        self._file = file
        self._table = blocks
        self._rest = b""
        self._digest = hashlib.sha256()
        self.bytes = 0

    def write(self, ids: np.ndarray) -> None:
        content = ids.tobytes()
        self._file.write(content)
        self._digest.update(content)
        self.bytes += len(content)
        content = self._rest + content
        whole = len(content) - len(content) % BLOCK_BYTES
        self._record(content[:whole])
        self._rest = content[whole:]

    def close(self) -> None:
        self._record(self._rest)
        self._file.close()

    @property
    def sha256(self) -> str:
        return self._digest.hexdigest()

    def _record(self, content: bytes) -> None:
        starts = range(0, len(content), BLOCK_BYTES)
        blocks = [xxh3_128(content[start : start + BLOCK_BYTES]) for start in starts]
        self._table.append([blocks])
