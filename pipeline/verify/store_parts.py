"""A part of a token store: undamaged, and what the store's tables say of it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from pipeline.files.contents import map_array
from pipeline.shard import schema
from pipeline.shard.digests import sha256_file, xxh3_128
from pipeline.shard.tables import read_table
from pipeline.verify.origins import PartOrigins, check_origins
from pipeline.verify.result import VerifyError
from pipeline.verify.token_ids import check_ids


@dataclass(frozen=True, slots=True, kw_only=True)
class StorePart:
    """A part that is to be checked, after the tables of its store were.

    `identity` is source.json, `row` the part's row of parts.parquet, `origins` what the tables say
    of where its documents are from. Where `whole` is false, no token is read.
    """

    root: Path
    identity: dict[str, Any]
    row: dict[str, Any]
    origins: PartOrigins
    whole: bool = True

    def path(self, ending: str) -> Path:
        """One of its three files."""
        return self.root / "parts" / f"{schema.part_name(self.row['part'])}.{ending}"


@dataclass(frozen=True, slots=True)
class PartBytes:
    """Bytes of a part's files: those that were read, and all."""

    read: int
    all: int


def check_store_part(part: StorePart) -> PartBytes:
    """Check a part's index, block digests and tokens.

    Raises:
        VerifyError: the first file that is missing, damaged, or at odds with the others.
    """
    dtype = np.dtype(part.identity["dtype"]).newbyteorder("<")
    first = part.row["first_doc_id"]
    lengths = map_file(part.root / "lengths.u32", "<u4")[first : first + part.row["documents"]]
    names = ("index", "blocks")
    paths = {name: part.path(f"{name}.parquet") for name in names}
    for name in names:
        check_digest(paths[name], part.row[f"{name}_sha256"], "parts.parquet")
    blocks = read_table(paths["blocks"], schema.PART_BLOCKS).column("xxh3_128").to_pylist()
    tokens = part.path("tokens")
    _check_size(tokens, part.row["tokens"] * dtype.itemsize, blocks)
    if part.whole:
        _check_tokens(tokens, part.row["tokens_sha256"], blocks)
    _check_index(paths["index"], part, lengths)
    if part.whole:
        check_ids(tokens, map_file(tokens, dtype), lengths, part.identity)
    read = sum(paths[name].stat().st_size for name in names)
    size = tokens.stat().st_size
    return PartBytes(read=read + size * part.whole, all=read + size)


def _check_index(path: Path, part: StorePart, lengths: np.ndarray) -> None:
    keep_columns = part.identity.get("keep_columns", [])
    index = read_table(path, schema.part_index(metadata=bool(keep_columns)))
    if keep_columns:
        _check_metadata(index.column(schema.METADATA), keep_columns, path)
    length = index.column("length").to_numpy()
    if not np.array_equal(length, lengths.astype(np.int64)):
        raise VerifyError("its lengths are not those of lengths.u32", path=path)
    if not np.array_equal(index.column("offset").to_numpy(), np.cumsum(length) - length):
        raise VerifyError("its documents do not lie end to end", path=path)
    if length.sum() != part.row["tokens"]:
        raise VerifyError("its lengths do not add up to the part's tokens", path=path)
    check_origins(index, part.origins, path)


def _check_metadata(column: pa.ChunkedArray, keep_columns: list[str], path: Path) -> None:
    """Every entry is null, or a JSON object of the kept columns."""
    for row, text in enumerate(column.to_pylist()):
        if text is None:
            continue
        try:
            found = list(json.loads(text))
        except (ValueError, TypeError):
            found = None
        if found != keep_columns:
            raise VerifyError(
                f"row {row}: metadata is {text[:80]!r}, must be an object of {keep_columns}",
                path=path,
            )


def _check_size(path: Path, size: int, blocks: list[str]) -> None:
    if not path.is_file():
        raise VerifyError("is missing", path=path)
    if path.stat().st_size != size:
        raise VerifyError(f"has {path.stat().st_size} bytes, must have {size}", path=path)
    if len(blocks) != -(-size // schema.BLOCK_BYTES):
        raise VerifyError(f"blocks.parquet has {len(blocks)} rows for {size} bytes", path=path)


def _check_tokens(path: Path, sha256: str, blocks: list[str]) -> None:
    with path.open("rb") as file:
        for number, digest in enumerate(blocks):
            if xxh3_128(file.read(schema.BLOCK_BYTES)) != digest:
                raise VerifyError(
                    f"block {number} (bytes from {number * schema.BLOCK_BYTES}) is damaged",
                    path=path,
                )
    check_digest(path, sha256, "parts.parquet")


def check_digest(path: Path, digest: str, recorded_in: str) -> None:
    """Hash a file.

    Raises:
        VerifyError: missing or another one.
    """
    if not path.is_file():
        raise VerifyError("is missing", path=path)
    if sha256_file(path) != digest:
        raise VerifyError(
            f"its bytes are not those of SHA-256 {digest} in {recorded_in}", path=path
        )


def map_file(path: Path, dtype: str | np.dtype[Any]) -> np.ndarray:
    """A file of plain numbers, mapped."""
    return map_array(path, np.dtype(dtype))
