"""Reading a token store: any part of any document, mapped, not loaded."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from functools import lru_cache
from io import BytesIO
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from packer.plan import Int64
from pipeline.files.contents import parquet_source
from pipeline.files.url_path import as_path, is_remote
from pipeline.shard import schema
from pipeline.shard.digests import sha256_file, xxh3_128
from pipeline.shard.store_tables import (
    StoreError,
    StoreParts,
    file_bytes,
    map_file,
    read_identity,
    read_parts,
)

__all__ = ["TABLES", "StoreError", "StoreParts", "TokenStore"]

TABLES = ("inputs.parquet", "parts.parquet", "lengths.u32", "rejects.parquet")
_OPEN_PARTS = 1024
_COPIED_PARTS = 64
"""Of a remote store: each that is open is a temporary copy."""
_SHORT_TOKENS = 64  # below this mean, one indexed copy was measured to beat a copy a piece


class TokenStore:
    """The documents of one source as token ids, by `doc_id`.

    Opening checks the identity and the small tables' digests; `check_tables`, `verify_part` and
    `check_blocks` check the rest. Token parts are mapped when asked for, and read-only.

    Args:
        directory: a finished store, `NAME-KEY/`.
        on_open: called with the store and a part before tokens of the part are first mapped.

    Raises:
        StoreError: not a finished store of this version, or a small table has changed.
    """

    def __init__(
        self, directory: Path, *, on_open: Callable[[TokenStore, int], None] | None = None
    ) -> None:
        self.directory = as_path(directory)
        self._on_open = on_open
        self.identity = read_identity(self.directory)
        self.name: str = self.identity["name"]
        self.key: str = self.identity["key"]
        self.documents: int = self.identity["documents"]
        self.tokens: int = self.identity["tokens"]
        self.dtype = np.dtype(self.identity["dtype"]).newbyteorder("<")
        self._check_table("inputs.parquet")
        self._check_table("parts.parquet")
        self.parts = read_parts(self.directory / "parts.parquet")
        if self.parts.documents.sum() != self.documents or self.parts.tokens.sum() != self.tokens:
            raise StoreError(f"{self.directory}: parts.parquet does not add up to source.json")
        self.lengths = map_file(self.directory / "lengths.u32", np.dtype("<u4"), self.documents)
        mapped = _COPIED_PARTS if is_remote(self.directory) else _OPEN_PARTS
        self._part_tokens = lru_cache(maxsize=mapped)(self._map_part)
        self._part_index = lru_cache(maxsize=_OPEN_PARTS)(self._read_index)

    def __reduce__(self) -> tuple[type[TokenStore], tuple[Path]]:
        return type(self), (self.directory,)

    def part_of(self, doc_id: Int64) -> Int64:
        """The part that holds each document, (pieces,).

        Raises:
            StoreError: a document that the store does not have.
        """
        if len(doc_id) and (doc_id.min() < 0 or doc_id.max() >= self.documents):
            bad = doc_id.min() if doc_id.min() < 0 else doc_id.max()
            raise StoreError(
                f"{self.directory}: no document {bad}; the store has {self.documents}, from 0"
            )
        # An empty part shares its first_doc_id with the next one; "right" passes it over.
        return np.searchsorted(self.parts.first_doc_id, doc_id, side="right") - 1

    def part_offsets(self, part: int) -> Int64:
        """Where a part's documents lie in its tokens, (documents + 1,): boundaries from 0."""
        return self._part_index(int(part))

    def gather(self, doc_id: Int64, start: Int64, stop: Int64) -> np.ndarray:
        """The ids of many pieces, back to back in the order asked for.

        Fastest where pieces that follow each other in the store are asked for in that order.

        Args:
            doc_id: documents, int64, (pieces,).
            start: first token of each piece in its document, int64, (pieces,).
            stop: one past its last token, int64, (pieces,).

        Returns:
            ids of the store's dtype, (sum of stop - start,).

        Raises:
            StoreError: a document or a range of tokens that the store does not have.
        """
        tokens = stop - start
        ids = np.empty(int(tokens.sum()), self.dtype)
        self._fill(doc_id, start, stop, ids, np.cumsum(tokens) - tokens)
        return ids

    def pieces(
        self, doc_id: Int64, start: Int64, stop: Int64, *, most_taken: int
    ) -> tuple[list[np.ndarray], Int64]:
        """The ids of many pieces where they lie, not copied, and the token after each.

        Args:
            doc_id: documents, int64, (pieces,).
            start: first token of each piece in its document, int64, (pieces,).
            stop: one past its last token, int64, (pieces,).
            most_taken: tokens of a document that are in use; what follows is no label.

        Returns:
            read-only views of the mapped parts, of the store's dtype; the token after each piece,
            -100 where its document ends: int64, (pieces,).

        Raises:
            StoreError: as `gather`.
        """
        part = self.part_of(doc_id)
        row = (doc_id - self.parts.first_doc_id[part]).tolist()
        numbers = part.tolist()
        offsets = {number: self._part_index(number) for number in set(numbers)}
        spans = [offsets[number].item(at) for number, at in zip(numbers, row, strict=True)]
        ends = [offsets[number].item(at + 1) for number, at in zip(numbers, row, strict=True)]
        begin = np.array(spans, np.int64)
        length = np.array(ends, np.int64) - begin
        for piece in np.flatnonzero((start < 0) | (stop < start) | (stop > length))[:1]:
            self._refuse(*map(int, (doc_id[piece], start[piece], stop[piece], length[piece])))
        tokens = {number: self._part_tokens(number) for number in offsets}
        first, last = (begin + start).tolist(), (begin + stop).tolist()
        places = zip(numbers, first, last, strict=True)
        found = [tokens[number][one:other] for number, one, other in places]
        labels = np.full(len(doc_id), schema.NO_LABEL, np.int64)
        for piece in np.flatnonzero(stop < np.minimum(length, most_taken)).tolist():
            labels[piece] = tokens[numbers[piece]][last[piece]]
        return found, labels

    def _fill(
        self, doc_id: Int64, start: Int64, stop: Int64, out: np.ndarray, place: np.ndarray
    ) -> list[tuple[Int64, int, Int64, Int64]]:
        """Copy pieces to their places in `out`; where they were found, as `_by_part` says it."""
        tokens = stop - start
        found = list(self._by_part(doc_id))
        for group, _, begin, end in found:
            length = end - begin
            wrong = (start[group] < 0) | (tokens[group] < 0) | (stop[group] > length)
            for at in np.flatnonzero(wrong)[:1]:
                piece = group[at]
                self._refuse(*map(int, (doc_id[piece], start[piece], stop[piece], length[at])))
        for group, part, begin, _ in found:
            source = self._part_tokens(part)
            _copy(source, begin + start[group], tokens[group], out, place[group])
        return found

    def _refuse(self, doc_id: int, start: int, stop: int, length: int) -> NoReturn:
        raise StoreError(
            f"{self.directory}: tokens {start} to {stop} of document {doc_id} were asked for; it "
            f"has {length}"
        )

    def lengths_of(self, doc_id: Int64) -> Int64:
        """Tokens of each document, (pieces,), from the parts' indexes, whose digests are checked.

        `lengths` has the same figures for planning, where `check_tables` vouches for them.
        """
        lengths = np.empty(len(doc_id), np.int64)
        for group, _, begin, end in self._by_part(doc_id):
            lengths[group] = end - begin
        return lengths

    def _by_part(self, doc_id: Int64) -> Iterator[tuple[Int64, int, Int64, Int64]]:
        """For each part: which of the pieces it holds, its number, their documents' spans in it."""
        part = self.part_of(doc_id)
        order = np.argsort(part, kind="stable")
        for group in np.split(order, np.flatnonzero(np.diff(part[order])) + 1):
            if len(group):
                number = int(part[group[0]])
                offsets = self.part_offsets(number)
                row = doc_id[group] - self.parts.first_doc_id[number]
                yield group, number, offsets[row], offsets[row + 1]

    def tokens_of(self, doc_id: int, start: int = 0, stop: int | None = None) -> np.ndarray:
        """The ids of one document or of a part of it."""
        end = int(self.lengths_of(np.array([doc_id]))[0]) if stop is None else stop
        return self.gather(*(np.array([value], np.int64) for value in (doc_id, start, end)))

    def metadata_of(self, doc_id: int) -> dict[str, Any] | None:
        """A document's kept columns; None where the source keeps none, or they were too long."""
        if not self.identity.get("keep_columns"):
            return None
        number = int(self.part_of(np.array([doc_id]))[0])
        table = self._part_table(number, "index", schema.part_index(metadata=True))
        row = doc_id - int(self.parts.first_doc_id[number])
        found = table[schema.METADATA][row].as_py()
        return None if found is None else json.loads(found)

    def origin_of(self, doc_id: int) -> tuple[str, int]:
        """Which record of which input file a document is: name, and number in the file from 0."""
        number = int(self.part_of(np.array([doc_id]))[0])
        table = self._index_table(number)
        row = doc_id - int(self.parts.first_doc_id[number])
        file, record = table["file"][row].as_py(), table["record"][row].as_py()
        if file == self.parts.file[number]:
            record += int(self.parts.first_record[number])
        inputs = pq.read_table(parquet_source(self.directory / "inputs.parquet"), columns=["path"])
        return inputs["path"][file].as_py(), record

    def check_tables(self) -> None:
        """Check the digests of all tables.

        Raises:
            StoreError: one has changed.
        """
        for name in {**dict.fromkeys(TABLES), **self.identity["digests"]}:
            self._check_table(name)

    def check_blocks(self, part: int) -> None:
        """Check a part's tokens block by block.

        Raises:
            StoreError: naming the first block that has changed.
        """
        path = self.part_path(part, "tokens")
        blocks = self._part_table(part, "blocks", schema.PART_BLOCKS)
        expected = blocks["xxh3_128"].to_pylist()
        size = int(self.parts.tokens[part]) * self.dtype.itemsize
        count = -(-size // schema.BLOCK_BYTES)
        if file_bytes(path) != size or len(expected) != count:
            raise StoreError(
                f"{path} has {file_bytes(path)} bytes and {len(expected)} block digests, not "
                f"{size} and {count}; build the store again"
            )
        for number, (block, digest) in enumerate(zip(_blocks(path), expected, strict=True)):
            if xxh3_128(block) != digest:
                raise StoreError(
                    f"{path}: block {number} (bytes {number * schema.BLOCK_BYTES} to "
                    f"{number * schema.BLOCK_BYTES + len(block)}) has changed; build the store "
                    "again"
                )

    def verify_part(self, part: int) -> None:
        """Check everything of a part: blocks, digests, and that index and lengths agree.

        Raises:
            StoreError: naming the file, and the block where it is one.
        """
        self.check_blocks(part)
        tokens_path = self.part_path(part, "tokens")
        if sha256_file(tokens_path) != self.parts.tokens_sha256[part]:
            raise StoreError(f"{tokens_path} is not the file of parts.parquet")
        index = self._index_table(part)
        first = int(self.parts.first_doc_id[part])
        lengths = self.lengths[first : first + int(self.parts.documents[part])].astype(np.int64)
        same = (
            np.array_equal(index["length"].to_numpy(), lengths)
            and np.array_equal(index["offset"].to_numpy(), np.cumsum(lengths) - lengths)
            and lengths.sum() == self.parts.tokens[part]
        )
        if not same:
            path = self.part_path(part, "index.parquet")
            raise StoreError(f"{path} does not agree with lengths.u32 and parts.parquet")

    def part_path(self, part: int, ending: str) -> Path:
        """A file of a part: `ending` is tokens, index.parquet or blocks.parquet."""
        return self.directory / "parts" / f"{schema.part_name(part)}.{ending}"

    def _check_table(self, name: str) -> None:
        path = self.directory / name
        expected = self.identity["digests"][name]
        if not path.is_file() or sha256_file(path) != expected:
            raise StoreError(f"{path} is not the file of source.json; build the store again")

    def _map_part(self, part: int) -> np.ndarray:
        if self._on_open is not None:
            self._on_open(self, part)
        return map_file(self.part_path(part, "tokens"), self.dtype, int(self.parts.tokens[part]))

    def _read_index(self, part: int) -> Int64:
        offsets = np.empty(int(self.parts.documents[part]) + 1, np.int64)
        offsets[:-1] = self._index_table(part)["offset"].to_numpy()
        offsets[-1] = self.parts.tokens[part]
        offsets.setflags(write=False)
        return offsets

    def _index_table(self, part: int) -> pa.Table:
        table = self._part_table(part, "index", schema.PART_INDEX)
        if table.num_rows != self.parts.documents[part]:
            raise StoreError(
                f"{self.part_path(part, 'index.parquet')} has {table.num_rows} rows for "
                f"{self.parts.documents[part]} documents; build the store again"
            )
        return table

    def _part_table(self, part: int, kind: str, expected: pa.Schema) -> pa.Table:
        """A part's index or blocks, checked against its digest before it is read."""
        path = self.part_path(part, f"{kind}.parquet")
        content = path.read_bytes() if path.is_file() else b""
        digests = self.parts.index_sha256 if kind == "index" else self.parts.blocks_sha256
        if hashlib.sha256(content).hexdigest() != digests[part]:
            raise StoreError(f"{path} is not the file of parts.parquet; build the store again")
        return pq.read_table(BytesIO(content), schema=expected)


def _blocks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while block := file.read(schema.BLOCK_BYTES):
            yield block


def _copy(
    source: np.ndarray, begin: Int64, tokens: Int64, target: np.ndarray, place: Int64
) -> None:
    """Copy `source[begin : begin + tokens]` to `target[place : place + tokens]`, piece by piece."""
    end = begin + tokens
    new = np.ones(len(begin), np.bool_)  # pieces that do not go on where the one before ended
    new[1:] = (begin[1:] != end[:-1]) | (place[1:] != place[:-1] + tokens[:-1])
    first = np.flatnonzero(new)
    begin, place = begin[first], place[first]
    tokens = np.add.reduceat(tokens, first)
    if tokens.sum() < _SHORT_TOKENS * len(tokens):
        within = np.arange(tokens.sum()) - np.repeat(np.cumsum(tokens) - tokens, tokens)
        target[np.repeat(place, tokens) + within] = source[np.repeat(begin, tokens) + within]
        return
    for start, count, at in zip(begin.tolist(), tokens.tolist(), place.tolist(), strict=True):
        target[at : at + count] = source[start : start + count]
