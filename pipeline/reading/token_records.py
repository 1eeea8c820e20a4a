"""Reading a split of a source that brings its own tokens: ids as they are, checked, not encoded.

The ids go into the same token store as those that a tokenizer makes. What differs is said once: a
bad record is one with ids outside the vocabulary, and a document's ends are those it has, or are
added where they are missing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from packer.plan import Int64
from pipeline.reading.megatron import MegatronIndex, check_bin, open_index, read_bin
from pipeline.reading.splits import Split
from pipeline.reading.token_columns import column_ids, read_arrow_columns, read_parquet_columns
from pipeline.settings.documents import SourceConfig
from pipeline.stores.rejects import Reject
from pipeline.tokenizer.identity import TokenizerIdentity

BATCH_BYTES = 1 << 20
BATCH_RECORDS = 1024


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TokenBatch:
    """Consecutive records of a split that have ids, good or bad.

    `ids` are back to back, of the file's own type; `valid` (ids,) says which are there at all;
    `lengths` and `record` (records,) are how many ids each has and its number in the split's part
    of `file`. `records` counts what was read of the split so far, this batch included.
    """

    ids: np.ndarray
    valid: np.ndarray
    lengths: Int64
    record: Int64
    file: int
    rejects: list[Reject]
    records: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TokenDocuments:
    """Accepted documents of a batch: ids back to back in the store's type, and what was refused.

    `lengths` and `record` are (documents,).
    """

    ids: np.ndarray
    lengths: Int64
    record: Int64
    rejects: list[Reject]


def read_tokens(split: Split, source: SourceConfig, *, longest: int) -> Iterator[TokenBatch]:
    """Read a split in bounded batches, in order.

    Memory is bounded by a batch and one document (for Parquet by a row group of the column,
    for Arrow by a record batch).

    Args:
        split: what to read.
        source: where the ids are in a record.
        longest: most tokens of a document; a longer one of a `.bin` is refused unread.

    Raises:
        SourceError: a file that cannot be read, or a `.bin` that has changed.
    """
    if source.token_column is None:
        return _read_megatron(split, longest)
    return _read_column(split, source.token_column)


def accept(
    batch: TokenBatch, identity: TokenizerIdentity, *, ends: str, longest: int
) -> TokenDocuments:
    """The documents of a batch; a record without ids, or with an id out of range, is refused.

    Args:
        batch: what was read.
        identity: its `vocab_size` bounds the ids, its dtype is the store's.
        ends: "as_given", or "add": BOS before a document that does not begin with it and EOS after
            one that does not end with it, where the identity has them.
        longest: most tokens of a document, ends included.
    """
    lengths, rejects = batch.lengths, list(batch.rejects)
    bad = ~batch.valid | (batch.ids < 0) | (batch.ids >= identity.vocab_size)
    stops = np.cumsum(lengths)
    first_bad = np.flatnonzero(bad)
    owner = np.searchsorted(stops, first_bad, side="right")
    owner, places = np.unique(owner, return_index=True)
    kept = lengths > 0

    def refuse(row: int, reason: str, detail: str) -> None:
        kept[row] = False
        record = int(batch.record[row])
        rejects.append(Reject(file=batch.file, record=record, reason=reason, detail=detail))

    for row in np.flatnonzero(lengths == 0).tolist():
        refuse(row, "no_tokens", "a document without tokens")
    for row, place in zip(owner.tolist(), first_bad[places].tolist(), strict=True):
        found = f"is {batch.ids[place]}" if batch.valid[place] else "is null"
        token = place - int(stops[row] - lengths[row])
        last = identity.vocab_size - 1
        refuse(row, "id_out_of_range", f"token {token} {found}; ids are 0 to {last}")
    ids, whole = batch.ids, lengths
    if not kept.all():
        ids, whole = ids[np.repeat(kept, lengths)], lengths[kept]
    ids = ids.astype(np.dtype(identity.dtype).newbyteorder("<"), copy=False)
    rows = np.flatnonzero(kept)
    if ends == "add":
        ids, whole = _with_missing_ends(ids, whole, identity)
    if len(whole) and whole.max() > longest:
        fits = whole <= longest
        for place in np.flatnonzero(~fits).tolist():
            detail = f"{whole[place]} tokens, at most {longest} are allowed"
            refuse(int(rows[place]), "too_long", detail)
        ids, whole, rows = ids[np.repeat(fits, whole)], whole[fits], rows[fits]
    return TokenDocuments(
        ids=ids,
        lengths=whole,
        record=batch.record[rows],
        rejects=sorted(rejects, key=lambda reject: reject.record),
    )


def ends_text(ends: str, identity: TokenizerIdentity) -> str:
    """One line that says what is added to the documents of a source that brings tokens."""
    added = [
        f"{label} id {token_id} {place} every document that does not {verb} with it"
        for label, token_id, place, verb in (
            ("BOS", identity.bos_id, "before", "begin"),
            ("EOS", identity.eos_id, "after", "end"),
        )
        if ends == "add" and token_id is not None
    ]
    return f"brings its own tokens; {'; '.join(added) or 'ends as given, nothing is added'}"


def _with_missing_ends(
    ids: np.ndarray, lengths: Int64, identity: TokenizerIdentity
) -> tuple[np.ndarray, Int64]:
    """Non-empty documents with BOS before and EOS after, where these are not there already."""
    stops = np.cumsum(lengths)
    before = np.zeros(len(lengths), np.bool_)
    after = np.zeros(len(lengths), np.bool_)
    if identity.bos_id is not None:
        before = ids[stops - lengths] != identity.bos_id
    if identity.eos_id is not None:
        after = ids[stops - 1] != identity.eos_id
    longer = lengths + before + after
    new_stops = np.cumsum(longer)
    whole = np.empty(int(longer.sum()), ids.dtype)
    inner = np.ones(len(whole), np.bool_)
    for wanted, places, token_id in (
        (before, new_stops - longer, identity.bos_id),
        (after, new_stops - 1, identity.eos_id),
    ):
        if token_id is not None:
            whole[places[wanted]] = token_id
            inner[places[wanted]] = False
    whole[inner] = ids
    return whole, longer


def _read_megatron(split: Split, longest: int) -> Iterator[TokenBatch]:
    """Documents of a pair; `split.files[0]` is its `.idx`, whose documents the records number."""
    index = open_index(split.paths[0])
    check_bin(index)
    first = split.start
    while first < split.stop:
        offsets = index.offsets(first, min(split.stop, first + BATCH_RECORDS))
        within = np.searchsorted(offsets, offsets[0] + BATCH_BYTES, side="right") - 1
        count = max(1, int(within))
        yield _megatron_batch(split, index, first, offsets[: count + 1], longest)
        first += count


def _megatron_batch(
    split: Split, index: MegatronIndex, first: int, offsets: Int64, longest: int
) -> TokenBatch:
    lengths = np.diff(offsets) // index.dtype.itemsize
    record = np.arange(first, first + len(lengths), dtype=np.int64) - split.start
    records, rejects = first + len(lengths) - split.start, []
    if len(lengths) == 1 and lengths[0] > longest:
        detail = f"{lengths[0]} tokens, at most {longest} are allowed"
        rejects.append(
            Reject(file=split.files[0], record=int(record[0]), reason="too_long", detail=detail)
        )
        offsets, lengths, record = offsets[:1], lengths[:0], record[:0]
    ids = read_bin(index, int(offsets[0]), int(offsets[-1]))
    return TokenBatch(
        ids=ids,
        valid=np.ones(len(ids), np.bool_),
        lengths=lengths,
        record=record,
        file=split.files[0],
        rejects=rejects,
        records=records,
    )


def _read_column(split: Split, token_column: str) -> Iterator[TokenBatch]:
    """Rows of a Parquet or Arrow file."""
    file, records, path = split.files[0], 0, split.paths[0]
    if split.format == "arrow":
        columns = read_arrow_columns(path, token_column, split.start, split.stop)
    else:
        columns = read_parquet_columns(path, token_column, range(split.start, split.stop))
    for column in columns:
        ids, valid, lengths, there = column_ids(column)
        record = np.arange(records, records + len(column), dtype=np.int64)
        records += len(column)
        detail = f"{token_column!r} is null"
        yield TokenBatch(
            ids=ids,
            valid=valid,
            lengths=lengths[there],
            record=record[there],
            file=file,
            rejects=[
                Reject(file=file, record=number, reason="missing_tokens", detail=detail)
                for number in record[~there].tolist()
            ],
            records=records,
        )
