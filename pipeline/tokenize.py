"""A split to the files of a part, and parts to a finished token store.

A part is written under temporary names and renamed, so a file that is there is whole; whether the
part is done is for the job's ledger to say, which keeps the receipts. Nothing here holds a split,
or a list of all documents, in memory.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.config import SourceConfig
from pipeline.part_files import BlockedFile, TableWriter, table_at
from pipeline.records import RecordBatch, Reject, read_records
from pipeline.shard import schema
from pipeline.shard.atomic import atomic_path, write_atomically
from pipeline.shard.digests import sha256_bytes, sha256_file
from pipeline.shard.token_store import TABLES, StoreError
from pipeline.sources import InputFile, Split
from pipeline.tokenizer.engine import Engine, load_engine
from pipeline.tokenizer.identity import TokenizerIdentity

MAX_DOCUMENT_TOKENS = 1 << 26
_PARTS = "parts"
_REJECTS = "rejects.parquet"


@dataclass(frozen=True, slots=True, kw_only=True)
class StorePartReceipt:
    """What a finished part holds, for the job's ledger.

    `file` is the row of the inputs of its first record, and `records` how many records (lines,
    rows) of its files it read, accepted or not. `rejected` counts the others by reason; their list
    is in a file beside the part until the store is finished.
    """

    part: int
    file: int
    records: int
    documents: int
    tokens: int
    text_bytes: int
    tokens_bytes: int
    tokens_sha256: str
    index_sha256: str
    blocks_sha256: str
    rejected: tuple[tuple[str, int], ...]

    def as_dict(self) -> dict[str, Any]:
        """The receipt as JSON types."""
        return {**asdict(self), "rejected": dict(self.rejected)}

    @classmethod
    def from_dict(cls, value: dict[str, Any]) -> Self:
        """A receipt from `as_dict`, before or after a trip through JSON."""
        return cls(**{**value, "rejected": tuple(sorted(value["rejected"].items()))})


def tokenize_split(
    split: Split,
    source: SourceConfig,
    identity: TokenizerIdentity,
    directory: Path,
) -> StorePartReceipt:
    """Write the part of a split: its tokens, index and block digests, and what it refused.

    The same split gives the same bytes, whoever writes them and however often.

    Args:
        split: what to read.
        source: where the text is in a record.
        identity: vocabulary, and what is added at a document's ends.
        directory: the store's.

    Raises:
        SourceError: an input that cannot be read.
        TokenizerError: the vocabulary is not the one of `identity`.
    """
    engine = load_engine(identity)
    base = directory / _PARTS / schema.part_name(split.number)
    with ExitStack() as stack:
        part = _PartWriter(stack, base, dict(zip(split.files, split.names, strict=True)))
        for batch in read_records(split, text_column=source.text_column):
            part.append(_encode(batch, engine, identity))
        part.close()
    return StorePartReceipt(
        part=split.number,
        file=split.files[0],
        records=part.records,
        documents=part.documents,
        tokens=part.tokens.bytes // np.dtype(identity.dtype).itemsize,
        text_bytes=part.text_bytes,
        tokens_bytes=part.tokens.bytes,
        tokens_sha256=part.tokens.sha256,
        index_sha256=sha256_file(f"{base}.index.parquet"),
        blocks_sha256=sha256_file(f"{base}.blocks.parquet"),
        rejected=tuple(sorted(part.rejected.items())),
    )


def part_is_there(directory: Path, receipt: StorePartReceipt) -> bool:
    """Whether a part's files still are what its receipt says: all there, whole, tables unchanged.

    The tokens are checked by their size alone; their digests are for `verify`.
    """
    expected = {"index.parquet": receipt.index_sha256, "blocks.parquet": receipt.blocks_sha256}
    tokens = _part_file(directory, receipt, "tokens")
    return (
        tokens.is_file()
        and tokens.stat().st_size == receipt.tokens_bytes
        and _part_file(directory, receipt, _REJECTS).is_file()
        and all(
            path.is_file() and sha256_file(path) == digest
            for ending, digest in expected.items()
            for path in [_part_file(directory, receipt, ending)]
        )
    )


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
        _write_rejects(directory, ordered)
        content = {
            "format": schema.STORE_FORMAT,
            "version": schema.VERSION,
            "name": name,
            "key": key,
            "dtype": identity.dtype,
            "tokenizer": identity.as_dict(),
            "engine": {"name": identity.engine, "version": identity.engine_version},
            "documents": sum(receipt.documents for receipt in ordered),
            "tokens": sum(receipt.tokens for receipt in ordered),
            "text_bytes": sum(receipt.text_bytes for receipt in ordered),
            "rejected": _total(ordered),
            "digests": {table: sha256_file(directory / table) for table in TABLES},
        }
        text = json.dumps(content, indent=2, ensure_ascii=False)
        write_atomically(description, f"{text}\n".encode())
    content = json.loads(description.read_bytes())
    if content["key"] != key:
        raise StoreError(
            f"{directory} holds the store with key {content['key']}, not {key}; remove it or give "
            "another directory"
        )
    for leftover in (*(directory / _PARTS).glob(".*"), *(directory / _PARTS).glob(f"*.{_REJECTS}")):
        leftover.unlink()
    return content


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Encoded:
    """Accepted documents of a batch: ids back to back, and an entry a document in the rest."""

    ids: np.ndarray
    lengths: np.ndarray
    file: np.ndarray
    record: np.ndarray
    text_bytes: int
    rejects: list[Reject]
    records: int


def _encode(batch: RecordBatch, engine: Engine, identity: TokenizerIdentity) -> _Encoded:
    ids, lengths = engine.encode(batch.texts)
    empty = lengths == 0  # before BOS and EOS: ends without a middle are no document
    ids, lengths = _with_ends(ids, lengths, identity)
    text_bytes = np.array(batch.text_bytes, np.int64)
    file, record = np.array(batch.file, np.int64), np.array(batch.record, np.int64)
    kept = ~empty & (lengths <= MAX_DOCUMENT_TOKENS)
    rejects = list(batch.rejects)
    for place in np.flatnonzero(~kept).tolist():
        tokens = int(lengths[place])
        rejects.append(
            Reject(
                file=batch.file[place],
                record=batch.record[place],
                reason="no_tokens" if empty[place] else "too_long",
                detail=f"{tokens} tokens, at most {MAX_DOCUMENT_TOKENS} are allowed"
                if not empty[place]
                else f"{batch.text_bytes[place]} bytes of text became no token",
            )
        )
    return _Encoded(
        ids=ids if kept.all() else ids[np.repeat(kept, lengths)],
        lengths=lengths[kept],
        file=file[kept],
        record=record[kept],
        text_bytes=int(text_bytes[kept].sum()),
        rejects=sorted(rejects, key=lambda reject: (reject.file, reject.record)),
        records=batch.records,
    )


def _with_ends(
    ids: np.ndarray, lengths: np.ndarray, identity: TokenizerIdentity
) -> tuple[np.ndarray, np.ndarray]:
    """Documents with BOS before and EOS after, as the identity says."""
    bos, eos = identity.bos_id, identity.eos_id
    longer = lengths + (bos is not None) + (eos is not None)
    stops = np.cumsum(longer)
    whole = np.empty(int(longer.sum()), ids.dtype)
    inner = np.ones(len(whole), np.bool_)
    if bos is not None:
        whole[stops - longer] = bos
        inner[stops - longer] = False
    if eos is not None:
        whole[stops - 1] = eos
        inner[stops - 1] = False
    whole[inner] = ids
    return whole, longer


class _PartWriter:
    """A part's files while they are written; the `stack` renames them when it closes."""

    def __init__(self, stack: ExitStack, base: Path, names: Mapping[int, str]):
        def path(ending: str) -> Path:
            return stack.enter_context(atomic_path(base.with_name(f"{base.name}.{ending}")))

        def table(ending: str, columns: pa.Schema) -> TableWriter:
            return stack.enter_context(TableWriter(path(ending), columns))

        self._names = names
        self._index = table("index.parquet", schema.PART_INDEX)
        self._blocks = table("blocks.parquet", schema.PART_BLOCKS)
        self._rejects = table(_REJECTS, schema.REJECTS)
        self.tokens = BlockedFile(stack.enter_context(path("tokens").open("wb")), self._blocks)
        self.documents = self.text_bytes = self.records = 0
        self.rejected: Counter[str] = Counter()
        self._num_tokens = 0

    def append(self, batch: _Encoded) -> None:
        self.tokens.write(batch.ids)
        offsets = self._num_tokens + np.cumsum(batch.lengths) - batch.lengths
        self._index.append([offsets, batch.lengths, batch.file, batch.record])
        self._num_tokens += len(batch.ids)
        self.documents += len(batch.lengths)
        self.text_bytes += batch.text_bytes
        self.records = batch.records
        self.rejected.update(reject.reason for reject in batch.rejects)
        rows = [(self._names[r.file], r.record, r.reason, r.detail) for r in batch.rejects]
        if rows:
            self._rejects.append([list(column) for column in zip(*rows, strict=True)])

    def close(self) -> None:
        """Write what the last block and row groups hold."""
        self.tokens.close()


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


def _total(receipts: Sequence[StorePartReceipt]) -> dict[str, int]:
    counts: Counter[str] = Counter()
    for receipt in receipts:
        counts.update(dict(receipt.rejected))
    return dict(sorted(counts.items()))


def _part_file(directory: Path, receipt: StorePartReceipt, ending: str) -> Path:
    return directory / _PARTS / f"{schema.part_name(receipt.part)}.{ending}"


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
        for receipt in receipts:
            index = _part_file(directory, receipt, "index.parquet")
            tokens = _part_file(directory, receipt, "tokens")
            content = index.read_bytes() if index.is_file() else b""
            size = tokens.stat().st_size if tokens.is_file() else -1
            if sha256_bytes(content) != receipt.index_sha256 or size != receipt.tokens_bytes:
                raise StoreError(
                    f"{index} or {tokens} is not what part {receipt.part}'s receipt says; remove "
                    "them and tokenize that split again"
                )
            lengths = pq.read_table(pa.BufferReader(content), columns=["length"])["length"]
            file.write(lengths.to_numpy().astype("<u4").tobytes())


def _write_rejects(directory: Path, receipts: Sequence[StorePartReceipt]) -> None:
    with table_at(directory / _REJECTS, schema.REJECTS) as table:
        for receipt, first_record in _with_first_record(receipts):
            path = _part_file(directory, receipt, _REJECTS)
            if not path.is_file():
                raise StoreError(f"{path} is missing; tokenize split {receipt.part} again")
            with pq.ParquetFile(path) as file:
                for batch in file.iter_batches(use_threads=False):
                    rows = pa.Table.from_batches([batch], schema=schema.REJECTS)
                    record = rows["record"].to_numpy() + first_record
                    table.append_table(rows.set_column(1, "record", pa.array(record)))
