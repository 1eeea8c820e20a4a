"""Token stores, read raw: whole, undamaged, and then as the truth that shards are held against."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from pipeline.shard import schema
from pipeline.shard.digests import sha256_bytes, sha256_file, xxh3_128
from pipeline.shard.manifest import Manifest, Source
from pipeline.shard.tables import read_bytes, read_table
from pipeline.verify.part import spans
from pipeline.verify.result import Progress, VerifyError
from pipeline.verify.token_ids import ENDS, check_ids

_TABLES = {
    "inputs.parquet": schema.INPUTS,
    "parts.parquet": schema.PARTS,
    "rejects.parquet": schema.REJECTS,
}
_MAPPED_PARTS = 64


class RawStore:
    """The tokens of a checked store, by document, through two maps and no index in memory.

    Args:
        directory: the store.
        dtype: of its tokens.
        part_tokens: tokens of each part, (parts,).
        scratch: where the offsets of its documents are written, 8 bytes a document.
    """

    def __init__(self, directory: Path, dtype: str, part_tokens: np.ndarray, scratch: Path) -> None:
        self.directory = directory
        self.lengths = _map(directory / "lengths.u32", "<u4")
        """Tokens of each document, (documents,)."""
        self.offsets = _write_offsets(self.lengths, scratch)
        """Tokens of the source before each document, and all of them at the end."""
        self._dtype = np.dtype(dtype).newbyteorder("<")
        self._part_starts = np.cumsum([0, *part_tokens.tolist()])
        self._part = lru_cache(_MAPPED_PARTS)(self._map_part)

    @property
    def documents(self) -> int:
        return len(self.lengths)

    @property
    def tokens(self) -> int:
        return int(self._part_starts[-1])

    def gather(self, doc_id: np.ndarray, start: np.ndarray, stop: np.ndarray) -> np.ndarray:
        """The tokens `[start, stop)` of documents, non-empty spans, back to back, int64."""
        begin, length = self.offsets[doc_id] + start, stop - start
        place = np.cumsum(length) - length
        tokens = np.empty(int(length.sum()), np.int64)
        part = np.searchsorted(self._part_starts, begin, side="right") - 1
        for number in np.unique(part):
            mine = np.flatnonzero(part == number)
            inside = begin[mine] - self._part_starts[number]
            tokens[spans(place[mine], length[mine])] = self._part(int(number))[
                spans(inside, length[mine])
            ]
        return tokens

    def _map_part(self, part: int) -> np.ndarray:
        return _map(self.directory / "parts" / f"{schema.part_name(part)}.tokens", self._dtype)


def check_store(
    manifest: Manifest, index: int, scratch: Path, progress: Progress
) -> tuple[RawStore, int, int]:
    """Check every file of a source's token store.

    Args:
        manifest: of the set.
        index: the source's place in the manifest.
        scratch: an existing directory for temporary files.
        progress: told of each part.

    Returns:
        The store, the number of its files, and their bytes.

    Raises:
        VerifyError: the first file that is missing, damaged, or at odds with the others.
    """
    source, root = manifest.sources[index], manifest.store_path(index)
    identity = _check_identity(manifest, source, root)
    tables = {name: read_table(root / name, columns) for name, columns in _TABLES.items()}
    if identity.get("notes"):
        tables["notes.parquet"] = read_table(root / "notes.parquet", schema.REJECTS)
    parts = tables["parts.parquet"].to_pylist()
    _check_tables(identity, tables, root)
    dtype = np.dtype(identity["dtype"]).newbyteorder("<")
    lengths = _map(root / "lengths.u32", "<u4")
    if len(lengths) != identity["documents"] or lengths.sum(dtype=np.int64) != identity["tokens"]:
        raise VerifyError(
            "its documents and tokens are not those of source.json", path=root / "lengths.u32"
        )
    num_bytes = sum((root / name).stat().st_size for name in (*identity["digests"], "source.json"))
    for done, part in enumerate(parts):
        progress(f"store {source.name}", done, len(parts))
        first = part["first_doc_id"]
        mine = lengths[first : first + part["documents"]]
        num_bytes += _check_part(
            root, part, dtype.itemsize, mine,
            num_inputs=tables["inputs.parquet"].num_rows,
            keep_columns=identity.get("keep_columns", []),
        )  # fmt: skip
        path = root / "parts" / f"{schema.part_name(part['part'])}.tokens"
        check_ids(path, _map(path, dtype), mine, identity)
    progress(f"store {source.name}", len(parts), len(parts))
    tokens = tables["parts.parquet"].column("tokens").to_numpy()
    store = RawStore(root, identity["dtype"], tokens, scratch)
    return store, 1 + len(identity["digests"]) + 3 * len(parts), num_bytes


def _check_identity(manifest: Manifest, source: Source, root: Path) -> dict[str, Any]:
    """source.json, and the tables that it vouches for."""
    path = root / "source.json"
    data = read_bytes(path)
    if sha256_bytes(data) != source.store_sha256:
        raise VerifyError(f"its SHA-256 is not {source.store_sha256}, as manifest.json says of "
                          f"source {source.name!r}", path=path)  # fmt: skip
    try:
        identity = json.loads(data)
        found = {name: identity[name] for name in ("format", "version", "name", "dtype")}
        noted = ["notes.parquet"] if identity.get("notes") else []
        stated = [identity[name] for name in ("documents", "tokens", "rejected", "tokenizer")]
        digests = {name: identity["digests"][name] for name in (*_TABLES, *noted, "lengths.u32")}
    except (ValueError, KeyError, TypeError) as error:
        raise VerifyError(f"is not as the format has it: {error!r}", path=path) from error
    if (found["format"], found["version"]) != (schema.STORE_FORMAT, schema.VERSION):
        raise VerifyError(f"is {found}, must be {schema.STORE_FORMAT} 1", path=path)
    # A store serves sets that call the vocabulary by other names.
    stated[-1] = {**stated[-1], "name": manifest.tokenizer["name"]}
    if stated != [source.documents, source.tokens, dict(source.rejected), manifest.tokenizer]:
        raise VerifyError(
            f"documents, tokens, rejected or tokenizer are not those that manifest.json has for "
            f"source {source.name!r}",
            path=path,
        )
    if found["name"] != source.name or found["dtype"] not in schema.TOKEN_TYPES:
        raise VerifyError(f"is {found}, must be the store of {source.name!r}", path=path)
    if identity.get("ends") not in ENDS:
        raise VerifyError(f"has ends {identity['ends']!r}, must be add or as_given", path=path)
    if np.dtype(found["dtype"]).itemsize > np.dtype(manifest.dtype).itemsize:
        raise VerifyError(f"has {found['dtype']} tokens, the shards {manifest.dtype}", path=path)
    for name, digest in digests.items():
        check_digest(root / name, digest, "source.json")
    return identity


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


def _check_tables(identity: dict[str, Any], tables: dict[str, pa.Table], root: Path) -> None:
    parts = tables["parts.parquet"]
    documents, tokens = (parts.column(name).to_numpy() for name in ("documents", "tokens"))
    if not np.array_equal(parts.column("part").to_numpy(), np.arange(len(documents))):
        raise VerifyError("parts must be numbered from 0", path=root / "parts.parquet")
    if not np.array_equal(parts.column("first_doc_id"), np.cumsum(documents) - documents):
        raise VerifyError("documents must lie end to end", path=root / "parts.parquet")
    if (documents.sum(), tokens.sum()) != (identity["documents"], identity["tokens"]):
        raise VerifyError("does not add up to source.json", path=root / "parts.parquet")
    for name, stated in (("rejects", identity["rejected"]), ("notes", identity.get("notes"))):
        if stated is None:
            continue
        counted = tables[f"{name}.parquet"].column("reason").value_counts().to_pylist()
        found = {row["values"]: row["counts"] for row in counted}
        if found != {reason: n for reason, n in stated.items() if n}:
            raise VerifyError(
                f"holds {found}, source.json says {stated}", path=root / f"{name}.parquet"
            )


def _check_part(
    root: Path,
    part: dict[str, Any],
    item_bytes: int,
    lengths: np.ndarray,
    *,
    num_inputs: int,
    keep_columns: list[str],
) -> int:
    """A part's three files; their bytes."""
    base = root / "parts" / schema.part_name(part["part"])
    paths = {name: base.with_suffix(f".{name}.parquet") for name in ("index", "blocks")}
    paths["tokens"] = base.with_suffix(".tokens")
    for name in ("index", "blocks"):
        check_digest(paths[name], part[f"{name}_sha256"], "parts.parquet")
    blocks = read_table(paths["blocks"], schema.PART_BLOCKS).column("xxh3_128").to_pylist()
    _check_tokens(paths["tokens"], part, item_bytes, blocks)
    index = read_table(paths["index"], schema.part_index(metadata=bool(keep_columns)))
    if keep_columns:
        _check_metadata(index.column(schema.METADATA), keep_columns, paths["index"])
    length = index.column("length").to_numpy()
    if not np.array_equal(length, lengths.astype(np.int64)):
        raise VerifyError("its lengths are not those of lengths.u32", path=paths["index"])
    if not np.array_equal(index.column("offset").to_numpy(), np.cumsum(length) - length):
        raise VerifyError("its documents do not lie end to end", path=paths["index"])
    if length.sum() != part["tokens"]:
        raise VerifyError("its lengths do not add up to the part's tokens", path=paths["index"])
    file = index.column("file").to_numpy()
    if len(file) and (file.min() < 0 or file.max() >= num_inputs):
        raise VerifyError("names an input that inputs.parquet lacks", path=paths["index"])
    return sum(path.stat().st_size for path in paths.values())


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


def _check_tokens(path: Path, part: dict[str, Any], item_bytes: int, blocks: list[str]) -> None:
    if not path.is_file():
        raise VerifyError("is missing", path=path)
    size = part["tokens"] * item_bytes
    if path.stat().st_size != size:
        raise VerifyError(f"has {path.stat().st_size} bytes, must have {size}", path=path)
    if len(blocks) != -(-size // schema.BLOCK_BYTES):
        raise VerifyError(f"blocks.parquet has {len(blocks)} rows for {size} bytes", path=path)
    with path.open("rb") as file:
        for number, digest in enumerate(blocks):
            if xxh3_128(file.read(schema.BLOCK_BYTES)) != digest:
                raise VerifyError(
                    f"block {number} (bytes from {number * schema.BLOCK_BYTES}) is damaged",
                    path=path,
                )
    check_digest(path, part["tokens_sha256"], "parts.parquet")


def _map(path: Path, dtype: str | np.dtype[Any]) -> np.ndarray:
    if path.stat().st_size == 0:
        return np.empty(0, dtype)  # an empty file cannot be mapped
    return np.memmap(path, dtype, mode="r").view(np.ndarray)


def _write_offsets(lengths: np.ndarray, scratch: Path) -> np.ndarray:
    """Running sums of the lengths, int64, (documents + 1,), mapped from a file in `scratch`."""
    path = scratch / f"offsets-{len(list(scratch.glob('offsets-*')))}"
    block, total = 1 << 20, 0
    with path.open("wb") as file:
        file.write(np.zeros(1, np.int64).tobytes())
        for first in range(0, len(lengths), block):
            sums = total + np.cumsum(lengths[first : first + block], dtype=np.int64)
            file.write(sums.tobytes())
            total = int(sums[-1])
    return _map(path, np.dtype(np.int64))
