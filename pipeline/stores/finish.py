"""Parts to a finished token store: its tables, and source.json last, which makes it one."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.files.atomic import (
    atomic_path,
    remove_files,
    remove_temporary,
    remove_tree,
    write_atomically,
)
from pipeline.files.contents import parquet_source, read_each
from pipeline.files.sizes import Sizes
from pipeline.files.url_path import is_remote
from pipeline.reading.listing import InputFile
from pipeline.reading.splits import Split
from pipeline.shard import schema
from pipeline.shard.digests import sha256_bytes, sha256_file
from pipeline.shard.token_store import TABLES, StoreError
from pipeline.stores.duplicates import FOLDER
from pipeline.stores.part_files import table_at
from pipeline.stores.tokenize import NOTES, PARTS, REJECTS, StorePartReceipt
from pipeline.tokenizer.identity import NO_ENGINE, TokenizerIdentity


def part_is_there(directory: Path, receipt: StorePartReceipt, sizes: Sizes | None = None) -> bool:
    """Whether a part's files still are what its receipt says: all there, whole, tables unchanged.

    The tokens are checked by their size alone; their digests are for `verify`. So are the tables
    of a part in an object store: who reads them checks them.

    Args:
        directory: the store's.
        receipt: of the part.
        sizes: of the files in its `parts/`; they are looked up where not given.
    """
    sizes = sizes or Sizes(directory / PARTS)
    expected = {"index.parquet": receipt.index_sha256, "blocks.parquet": receipt.blocks_sha256}
    name = schema.part_name(receipt.part)
    return (
        sizes.of(f"{name}.tokens") == receipt.tokens_bytes
        and all(sizes.of(f"{name}.{of}") is not None for of in (REJECTS, NOTES, *expected))
        and (
            is_remote(directory)
            or all(
                sha256_file(_part_file(directory, receipt, ending)) == digest
                for ending, digest in expected.items()
            )
        )
    )


def rejects_path(directory: Path, part: int) -> Path:
    """Where a part's rejects are listed until the store is finished."""
    return directory / PARTS / f"{schema.part_name(part)}.{REJECTS}"


def finish_store(
    directory: Path,
    *,
    name: str,
    key: str,
    identity: TokenizerIdentity,
    inputs: Sequence[InputFile],
    digests: Sequence[str],
    receipts: Sequence[StorePartReceipt],
    splits: Sequence[Split],
    keep_columns: Sequence[str] = (),
    given_ends: str | None = None,
) -> dict[str, Any]:
    """Write a store's tables over its parts, and source.json last, which makes it a store.

    Killed anywhere, it can be run again; on a finished store it changes nothing.

    Args:
        directory: the store's, with all parts in `parts/`.
        name: of the source.
        key: of the store, 64 hex digits.
        identity: what the parts were made with.
        inputs: the source's files.
        digests: their XXH3-128, (inputs,).
        receipts: one a split, in any order.
        splits: all splits of the source.
        keep_columns: the source's.
        given_ends: the source's; recorded where it brings tokens.

    Returns:
        the content of source.json.

    Raises:
        StoreError: a part is missing or is not what its receipt says, or another store is there.
    """
    description = directory / "source.json"
    if not description.exists():
        ordered = _in_order(receipts, splits, directory)
        _write_inputs(directory, inputs, digests)
        _write_parts(directory, ordered)
        _write_lengths(directory, ordered)
        _write_listing(directory, ordered, REJECTS)
        optional: dict[str, Any] = {}
        if keep_columns:
            optional["keep_columns"] = sorted(keep_columns)
        if given_ends:
            optional["ends"] = given_ends
        tables = TABLES
        if notes := _total(receipt.notes for receipt in ordered):
            _write_listing(directory, ordered, NOTES)
            optional["notes"] = notes
            tables = (*TABLES, NOTES)
        content = {
            "format": schema.STORE_FORMAT,
            "version": schema.VERSION,
            "name": name,
            "key": key,
            "dtype": identity.dtype,
            "tokenizer": identity.as_dict(),
            "engine": _engine(identity, given_ends),
            "documents": sum(receipt.documents for receipt in ordered),
            "tokens": sum(receipt.tokens for receipt in ordered),
            "text_bytes": sum(receipt.text_bytes for receipt in ordered),
            "rejected": _total(receipt.rejected for receipt in ordered),
            **optional,
            "digests": {table: sha256_file(directory / table) for table in tables},
        }
        text = json.dumps(content, indent=2, ensure_ascii=False)
        write_atomically(description, f"{text}\n".encode())
    content = json.loads(description.read_bytes())
    if content["key"] != key:
        raise StoreError(
            f"{directory} holds the store with key {content['key']}, not {key}; remove it or give "
            "another directory"
        )
    remove_leftovers(directory)
    return content


def remove_leftovers(directory: Path) -> None:
    """Remove what a finished store needs no more; killed before, a job leaves it there."""
    remove_temporary(directory)
    for pattern in (".*", f"*.{REJECTS}", f"*.{NOTES}"):
        remove_files((directory / PARTS).glob(pattern))
    remove_tree(directory / FOLDER)


def _engine(identity: TokenizerIdentity, given_ends: str | None) -> dict[str, str]:
    """What encoded, for source.json; nothing did where the source brings tokens."""
    if given_ends:
        return {"name": NO_ENGINE, "version": ""}
    return {"name": identity.engine, "version": identity.engine_version}


def _in_order(
    receipts: Sequence[StorePartReceipt], splits: Sequence[Split], directory: Path
) -> list[StorePartReceipt]:
    ordered = sorted(receipts, key=lambda receipt: receipt.part)
    if [receipt.part for receipt in ordered] != [split.number for split in splits]:
        raise StoreError(
            f"{directory}: {len(ordered)} receipts for {len(splits)} splits; every split must be "
            "tokenized once before the store can be finished"
        )
    return ordered


def _with_first_record(
    receipts: Sequence[StorePartReceipt],
) -> Iterator[tuple[StorePartReceipt, int]]:
    """Parts in order, each with the records of its first file that earlier parts read."""
    file, records = -1, 0
    for receipt in receipts:
        if receipt.file != file:
            file, records = receipt.file, 0
        yield receipt, records
        records += receipt.records


def _total(counted: Iterable[tuple[tuple[str, int], ...]]) -> dict[str, int]:
    counts: Counter[str] = Counter()
    for part in counted:
        counts.update(dict(part))
    return dict(sorted(counts.items()))


def _part_file(directory: Path, receipt: StorePartReceipt, ending: str) -> Path:
    return directory / PARTS / f"{schema.part_name(receipt.part)}.{ending}"


def _write_inputs(directory: Path, inputs: Sequence[InputFile], digests: Sequence[str]) -> None:
    columns = [[file.name for file in inputs], [file.bytes for file in inputs], list(digests)]
    with table_at(directory / "inputs.parquet", schema.INPUTS) as table:
        table.append(columns)


def _write_parts(directory: Path, receipts: Sequence[StorePartReceipt]) -> None:
    rows, documents = [], 0
    for receipt, first_record in _with_first_record(receipts):
        rows.append({**asdict(receipt), "first_doc_id": documents, "first_record": first_record})
        documents += receipt.documents
    with table_at(directory / "parts.parquet", schema.PARTS) as table:
        table.append([[row[column] for row in rows] for column in schema.PARTS.names])


def _write_lengths(directory: Path, receipts: Sequence[StorePartReceipt]) -> None:
    """Gather the parts' lengths, checking that each part is the one of its receipt."""
    with atomic_path(directory / "lengths.u32") as path, path.open("wb") as file:
        sizes = Sizes(directory / PARTS)
        indexes = [_part_file(directory, receipt, "index.parquet") for receipt in receipts]
        for receipt, index, content in zip(receipts, indexes, read_each(indexes), strict=True):
            tokens = _part_file(directory, receipt, "tokens")
            size = sizes.of(tokens.name)
            if sha256_bytes(content) != receipt.index_sha256 or size != receipt.tokens_bytes:
                raise StoreError(
                    f"{index} or {tokens} is not what part {receipt.part}'s receipt says; remove "
                    "them and tokenize that split again"
                )
            lengths = pq.read_table(pa.BufferReader(content), columns=["length"])["length"]
            file.write(lengths.to_numpy().astype("<u4").tobytes())


def _write_listing(directory: Path, receipts: Sequence[StorePartReceipt], name: str) -> None:
    """Gather the parts' rejects or notes, records numbered in their files."""
    sizes = Sizes(directory / PARTS)
    with table_at(directory / name, schema.REJECTS) as table:
        for receipt, first_record in _with_first_record(receipts):
            path = _part_file(directory, receipt, name)
            if sizes.of(path.name) is None:
                raise StoreError(f"{path} is missing; tokenize split {receipt.part} again")
            if not (receipt.rejected if name == REJECTS else receipt.notes):
                continue
            with pq.ParquetFile(parquet_source(path)) as file:
                for batch in file.iter_batches(use_threads=False):
                    rows = pa.Table.from_batches([batch], schema=schema.REJECTS)
                    record = rows["record"].to_numpy() + first_record
                    table.append_table(rows.set_column(1, "record", pa.array(record)))
