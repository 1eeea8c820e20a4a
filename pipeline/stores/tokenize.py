"""A split to the files of a part of a token store.

A part is written under temporary names and renamed, so a file that is there is whole; whether the
part is done is for the job's ledger to say, which keeps the receipts. Nothing here holds a split,
or a list of all documents, in memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import pyarrow as pa

from pipeline.files.atomic import atomic_path
from pipeline.reading.records.read import RecordBatch, read_records
from pipeline.reading.splits import Split
from pipeline.reading.token_records import accept, read_tokens
from pipeline.settings.documents import SourceConfig
from pipeline.shard import schema
from pipeline.shard.digests import sha256_file
from pipeline.stores.duplicates import duplicates_of
from pipeline.stores.part_files import BlockedFile, TableWriter
from pipeline.stores.rejects import Reject
from pipeline.tokenizer.documents import (
    MAX_UNBROKEN_BYTES,
    DocumentEncoder,
    EncodedDocuments,
    load_encoder,
)
from pipeline.tokenizer.identity import TokenizerIdentity

MAX_DOCUMENT_TOKENS = 1 << 26
PARTS = "parts"
REJECTS = "rejects.parquet"
NOTES = "notes.parquet"


@dataclass(frozen=True, slots=True, kw_only=True)
class StorePartReceipt:
    """What a finished part holds, for the job's ledger.

    `file` is the row of the inputs of its first record, and `records` how many records (lines,
    rows) of its files it read, accepted or not. `rejected` counts the others by reason, `notes`
    what is worth a note of the accepted ones; their lists are in files beside the part until the
    store is finished.
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
    notes: tuple[tuple[str, int], ...]

    def as_dict(self) -> dict[str, Any]:
        """The receipt as JSON types."""
        return {**asdict(self), "rejected": dict(self.rejected), "notes": dict(self.notes)}

    @classmethod
    def from_dict(cls, value: dict[str, Any]) -> Self:
        """A receipt from `as_dict`, before or after a trip through JSON."""
        counts = {name: tuple(sorted(value[name].items())) for name in ("rejected", "notes")}
        return cls(**{**value, **counts})


def tokenize_split(
    split: Split,
    source: SourceConfig,
    identity: TokenizerIdentity,
    directory: Path,
    scratch: Path | None = None,
) -> StorePartReceipt:
    """Write the part of a split: its tokens, index and block digests, and what it refused.

    The same split gives the same bytes, whoever writes them and however often.

    Args:
        split: what to read.
        source: where the text, or the ids, are in a record.
        identity: vocabulary, and what is added at a document's ends.
        directory: the store's.
        scratch: where ids were compared, `directory` where not given.

    Raises:
        SourceError: an input that cannot be read.
        FileNotFoundError: ids were not compared before.
        TokenizerError: the vocabulary is not the one of `identity`.
    """
    duplicates = duplicates_of(scratch or directory, split.number) if source.id_column else ()
    base = directory / PARTS / schema.part_name(split.number)
    with ExitStack() as stack:
        names = dict(zip(split.files, split.names, strict=True))
        part = _PartWriter(stack, base, names, metadata=bool(source.keep_columns))
        for documents, read in _documents_of(split, source, identity, duplicates):
            part.append(documents, read)
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
        index_sha256=part.sha256["index.parquet"],
        blocks_sha256=part.sha256["blocks.parquet"],
        rejected=tuple(sorted(part.rejected.items())),
        notes=tuple(sorted(part.notes.items())),
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Documents:
    """Accepted documents of a batch: ids back to back, and an entry a document in the rest."""

    ids: np.ndarray
    lengths: np.ndarray
    file: np.ndarray
    record: np.ndarray
    text_bytes: int
    rejects: list[Reject]
    records: int


def _documents_of(
    split: Split,
    source: SourceConfig,
    identity: TokenizerIdentity,
    duplicates: np.ndarray | tuple[()],
) -> Iterator[tuple[_Documents, RecordBatch]]:
    """A split's documents in order, encoded or as the source brings them, and what was read."""
    ends = source.given_ends
    if ends is not None:
        for given in read_tokens(split, source, longest=MAX_DOCUMENT_TOKENS):
            found = accept(given, identity, ends=ends, longest=MAX_DOCUMENT_TOKENS)
            documents = _Documents(
                ids=found.ids,
                lengths=found.lengths,
                file=np.full(len(found.lengths), given.file, np.int64),
                record=found.record,
                text_bytes=0,
                rejects=found.rejects,
                records=given.records,
            )
            yield documents, RecordBatch()
        return
    encoder = load_encoder(identity)
    for batch in read_records(split, source, duplicates):
        yield _encode(batch, encoder, identity), batch


def _encode(
    batch: RecordBatch, encoder: DocumentEncoder, identity: TokenizerIdentity
) -> _Documents:
    encoded = encoder.encode(batch.texts)
    ids, lengths = _with_ends(encoded.ids, encoded.lengths, identity)
    kept = (encoded.lengths > 0) & (lengths <= MAX_DOCUMENT_TOKENS)
    refused = [_refusal(batch, encoded, place) for place in np.flatnonzero(~kept).tolist()]
    return _Documents(
        ids=ids if kept.all() else ids[np.repeat(kept, lengths)],
        lengths=lengths[kept],
        file=np.array(batch.file, np.int64)[kept],
        record=np.array(batch.record, np.int64)[kept],
        text_bytes=int(np.array(batch.text_bytes, np.int64)[kept].sum()),
        rejects=sorted((*batch.rejects, *refused), key=lambda reject: (reject.file, reject.record)),
        records=batch.records,
    )


def _refusal(batch: RecordBatch, encoded: EncodedDocuments, place: int) -> Reject:
    """Why a text whose ids are not kept is no document."""
    tokens = int(encoded.lengths[place])
    if place in encoded.unbroken:
        reason = "unbroken"
        detail = (
            f"{encoded.unbroken[place]} bytes up to a place where it could be cut, at most "
            f"{MAX_UNBROKEN_BYTES} are encoded in one"
        )
    elif tokens == 0:  # ends without a middle are no document
        reason, detail = "no_tokens", f"{batch.text_bytes[place]} bytes of text became no token"
    else:
        reason = "too_long"
        detail = f"{tokens} tokens, at most {MAX_DOCUMENT_TOKENS} are allowed"
    return Reject(file=batch.file[place], record=batch.record[place], reason=reason, detail=detail)


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
    """A part's files while they are written; the `stack` renames them when it closes.

    Then `sha256` has the digests of its tables, by the ends of their names.
    """

    def __init__(self, stack: ExitStack, base: Path, names: Mapping[int, str], *, metadata: bool):
        def path(ending: str) -> Path:
            return stack.enter_context(atomic_path(base.with_name(f"{base.name}.{ending}")))

        def table(ending: str, columns: pa.Schema) -> TableWriter:
            temporary = path(ending)

            def digest(kind: type[BaseException] | None, *_: object) -> None:
                if kind is None:  # the table is whole, and still has its temporary name
                    self.sha256[ending] = sha256_file(temporary)

            stack.push(digest)
            return stack.enter_context(TableWriter(temporary, columns))

        self.sha256: dict[str, str] = {}
        self._names = names
        self._metadata = metadata
        self._index = table("index.parquet", schema.part_index(metadata=metadata))
        self._blocks = table("blocks.parquet", schema.PART_BLOCKS)
        self._rejects = table(REJECTS, schema.REJECTS)
        self._notes = table(NOTES, schema.REJECTS)
        self.tokens = BlockedFile(stack.enter_context(path("tokens").open("wb")), self._blocks)
        self.documents = self.text_bytes = self.records = 0
        self.rejected: Counter[str] = Counter()
        self.notes: Counter[str] = Counter()
        self._num_tokens = 0

    def append(self, batch: _Documents, read: RecordBatch) -> None:
        """Add a batch: what became of its records, and what was read of them."""
        self.tokens.write(batch.ids)
        offsets = self._num_tokens + np.cumsum(batch.lengths) - batch.lengths
        columns = [offsets, batch.lengths, batch.file, batch.record]
        self._index.append([*columns, _metadata(batch, read)] if self._metadata else columns)
        self._num_tokens += len(batch.ids)
        self.documents += len(batch.lengths)
        self.text_bytes += batch.text_bytes
        self.records = batch.records
        self.rejected.update(reject.reason for reject in batch.rejects)
        self._list(self._rejects, batch.rejects)
        refused = {(reject.file, reject.record) for reject in batch.rejects}
        notes = [note for note in read.notes if (note.file, note.record) not in refused]
        self.notes.update(note.reason for note in notes)
        self._list(self._notes, notes)

    def _list(self, table: TableWriter, entries: Sequence[Reject]) -> None:
        rows = [(self._names[r.file], r.record, r.reason, r.detail) for r in entries]
        if rows:
            table.append([list(column) for column in zip(*rows, strict=True)])

    def close(self) -> None:
        """Write what the last block and row groups hold."""
        self.tokens.close()


def _metadata(batch: _Documents, read: RecordBatch) -> list[str | None]:
    """The metadata of the documents that were encoded, of all that were read."""
    places = zip(read.file, read.record, strict=True)
    found = dict(zip(places, read.metadata, strict=True))
    return [found[place] for place in zip(batch.file.tolist(), batch.record.tolist(), strict=True)]
