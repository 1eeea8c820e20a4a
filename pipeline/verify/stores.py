"""Token stores, read raw: whole, undamaged, and then as the truth that shards are held against."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from pipeline.shard import schema
from pipeline.shard.digests import sha256_bytes
from pipeline.shard.manifest import Manifest, Source
from pipeline.shard.tables import read_bytes, read_table
from pipeline.verify.origins import PartOrigins, formats_of, part_origins
from pipeline.verify.part import spans
from pipeline.verify.result import InOrder, Progress, VerifyError
from pipeline.verify.sample import Sample
from pipeline.verify.store_parts import StorePart, check_digest, check_store_part, map_file
from pipeline.verify.token_ids import ENDS

_TABLES = {
    "inputs.parquet": schema.INPUTS,
    "parts.parquet": schema.PARTS,
    "rejects.parquet": schema.REJECTS,
}
_MAPPED_PARTS = 64


class RawStore:
    """The tokens of a checked store, by document, through maps and no index in memory.

    It is small to pickle: another process maps the same files.

    Args:
        directory: the store.
        dtype: of its tokens.
        index: what `write_index` wrote of it.
    """

    def __init__(self, directory: Path, dtype: str, index: Path) -> None:
        self.directory = directory
        self.lengths = map_file(directory / "lengths.u32", "<u4")
        """Tokens of each document, (documents,)."""
        self.offsets = map_file(index / "offsets", np.dtype(np.int64))
        """Tokens of the source before each document, and all of them at the end."""
        self._part_starts = map_file(index / "part_starts", np.dtype(np.int64))
        self._dtype, self._index = dtype, index
        self._part = lru_cache(_MAPPED_PARTS)(self._map_part)

    def __reduce__(self) -> tuple[type[RawStore], tuple[Path, str, Path]]:
        return RawStore, (self.directory, self._dtype, self._index)

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
        path = self.directory / "parts" / f"{schema.part_name(part)}.tokens"
        return map_file(path, np.dtype(self._dtype).newbyteorder("<"))


@dataclass(slots=True)
class StoreCounts:
    """Files of all stores, and their bytes: those that were read, and all; parts of each store."""

    files: int = 0
    bytes: int = 0
    all_bytes: int = 0
    parts: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Store:
    """A store whose tables were checked."""

    name: str
    root: Path
    identity: dict[str, Any]
    parts: pa.Table
    origins: list[PartOrigins]
    """Of each part."""
    read: frozenset[int]
    """Numbers of the parts whose tokens are read."""

    def units(self) -> Iterator[StorePart]:
        for part in range(self.parts.num_rows):
            row = {
                name: column[0] for name, column in self.parts.slice(part, 1).to_pydict().items()
            }
            yield StorePart(
                root=self.root,
                identity=self.identity,
                row=row,
                origins=self.origins[part],
                whole=part in self.read,
            )


def check_stores(
    manifest: Manifest,
    scratch: Path,
    progress: Progress,
    in_order: InOrder = map,
    sample: Sample | None = None,
) -> tuple[list[RawStore], StoreCounts]:
    """Check every file of the token stores: first the tables of all of them, then the parts.

    Args:
        manifest: of the set.
        scratch: an existing directory; takes 8 bytes a document.
        progress: told of each part.
        in_order: maps parts.
        sample: chooses the parts whose tokens are read; None for all.

    Returns:
        The stores, in the order of the sources.

    Raises:
        VerifyError: the first file that is missing, damaged, or at odds with the others.
    """
    counts = StoreCounts()
    found = [
        _check_store(manifest, index, sample, counts) for index in range(len(manifest.sources))
    ]
    units = (unit for store in found for unit in store.units())
    results = in_order(check_store_part, units)
    for store in found:
        for done in range(store.parts.num_rows):
            progress(f"store {store.name}", done, store.parts.num_rows)
            size = next(results)
            counts.bytes, counts.all_bytes = counts.bytes + size.read, counts.all_bytes + size.all
        progress(f"store {store.name}", store.parts.num_rows, store.parts.num_rows)
    stores = []
    for number, store in enumerate(found):
        index = scratch / f"store-{number}"
        write_index(store.root, store.parts.column("tokens").to_numpy(), index)
        stores.append(RawStore(store.root, store.identity["dtype"], index))
    return stores, counts


def store_parts(sample: Sample, name: str, count: int) -> tuple[int, ...]:
    """The parts of a source's store that a sample reads."""
    return sample.of(f"store {name}", count)


def write_index(directory: Path, part_tokens: np.ndarray, index: Path) -> None:
    """Write what `RawStore` maps beside the store: running sums of documents and of parts.

    Args:
        directory: the store.
        part_tokens: tokens of each of its parts, (parts,).
        index: a directory to make.
    """
    index.mkdir()
    np.cumsum([0, *part_tokens.tolist()], dtype=np.int64).tofile(index / "part_starts")
    lengths, block, total = map_file(directory / "lengths.u32", "<u4"), 1 << 20, 0
    with (index / "offsets").open("wb") as file:
        file.write(np.zeros(1, np.int64).tobytes())
        for first in range(0, len(lengths), block):
            sums = total + np.cumsum(lengths[first : first + block], dtype=np.int64)
            file.write(sums.tobytes())
            total = int(sums[-1])


def _check_store(
    manifest: Manifest, index: int, sample: Sample | None, counts: StoreCounts
) -> _Store:
    """The tables of a source's store, and its documents' lengths."""
    source, root = manifest.sources[index], manifest.store_path(index)
    identity = _check_identity(manifest, source, root)
    tables = {name: read_table(root / name, columns) for name, columns in _TABLES.items()}
    if identity.get("notes"):
        tables["notes.parquet"] = read_table(root / "notes.parquet", schema.REJECTS)
    _check_tables(identity, tables, root)
    lengths = map_file(root / "lengths.u32", "<u4")
    if len(lengths) != identity["documents"] or lengths.sum(dtype=np.int64) != identity["tokens"]:
        raise VerifyError(
            "its documents and tokens are not those of source.json", path=root / "lengths.u32"
        )
    parts = tables["parts.parquet"]
    size = sum((root / name).stat().st_size for name in (*identity["digests"], "source.json"))
    counts.files += 1 + len(identity["digests"]) + 3 * parts.num_rows
    counts.bytes, counts.all_bytes = counts.bytes + size, counts.all_bytes + size
    counts.parts.append(parts.num_rows)
    numbers = range(parts.num_rows)
    return _Store(
        name=source.name,
        root=root,
        identity=identity,
        parts=parts,
        origins=part_origins(tables, root, formats_of(manifest).get(source.name)),
        read=frozenset(
            numbers if sample is None else store_parts(sample, source.name, len(numbers))
        ),
    )


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
