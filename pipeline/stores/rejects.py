"""Records that are not accepted: the reasons, and when they stop a job.

A bad record is refused by itself, counted and listed. Stopping is the user's wish, by reason or by
share; it changes nothing in what a store holds, so it is no part of a store's key.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import pyarrow.parquet as pq

from pipeline.files.contents import parquet_source

REASONS = {
    "broken_json": "a line that is not JSON",
    "not_an_object": "a line of JSON that is not an object",
    "missing_text": "the text column is absent or null",
    "text_not_string": "the text column holds something else",
    "empty_text": "nothing, or nothing but white space",
    "bad_utf8": "bytes that are not UTF-8, or half of a surrogate pair",
    "utf16": "a whole file that starts with a UTF-16 byte-order mark",
    "truncated": "a compressed file that ends early or is damaged: the rest of it",
    "too_long": "over the limits of a line, a text or a document",
    "unbroken": "text without a place to cut that is too long to be encoded in one",
    "no_tokens": "text of which the tokenizer makes no token",
    "missing_tokens": "the token column is null",
    "id_out_of_range": "an id below 0, not below the vocabulary's size, or null",
    "duplicate_id": 'an id that an earlier record has (duplicate_ids = "reject")',
}
MIN_REJECTED = 100
"""Fewer rejects than this stop a job only where nothing at all was accepted."""


class RejectsError(ValueError):
    """The policy on rejects stops the job; the message says what was found and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reject:
    """A record that was not accepted, or one that was and is worth a note.

    `file` is a row of the inputs and `record` the number in the split's part of that file. `reason`
    is one of `REASONS`; of a note, what is noted.
    """

    file: int
    record: int
    reason: str
    detail: str


def check_reasons(names: Sequence[str]) -> None:
    """Refuse a name that is no reason.

    Raises:
        ValueError: naming the nearest reason.
    """
    for name in names:
        if name not in REASONS:
            near = difflib.get_close_matches(name, REASONS, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(REASONS)}"
            raise ValueError(f"no reason is called {name!r}; {hint}")


def check_stop_on(
    rejected: Mapping[str, int],
    stop_on: Sequence[str],
    *,
    source: str,
    table: Path,
    after: str = "",
) -> None:
    """Stop at the first reject whose reason is in `stop_on`.

    Args:
        rejected: counts by reason.
        stop_on: `rejects.stop_on`.
        source: its name.
        table: where the rejects are listed.
        after: what a record's number counts from, where that is not the start of its file.

    Raises:
        RejectsError: naming that record.
    """
    if not any(rejected.get(reason) for reason in stop_on):
        return
    row = first_row(table, stop_on)
    raise RejectsError(
        f"source {source!r}: {row['path']}, record {row['record']}{after}: {row['reason']} "
        f"({row['detail']}); rejects.stop_on names {row['reason']!r}: repair or remove the record, "
        "or take the reason from the list"
    )


def stop_on_duplicates(count: int, *, source: str, path: str, record: int) -> NoReturn:
    """Stop: records repeat an id and `duplicate_ids` is "stop".

    Args:
        count: how many do.
        source: its name.
        path: the input of the first of them.
        record: its number there.

    Raises:
        RejectsError: naming that record.
    """
    raise RejectsError(
        f"source {source!r}: {count:,} records have the id of an earlier one, first {path}, record "
        f'{record}; remove them, or set duplicate_ids to "reject" or "count"'
    )


def check_share(
    rejected: Mapping[str, int], documents: int, max_share: float, *, source: str, table: Path
) -> None:
    """Stop where too many of a source's records were rejected; duplicates are as the user wished.

    Args:
        rejected: counts by reason.
        documents: accepted records.
        max_share: `rejects.max_share`.
        source: its name.
        table: where the rejects are listed.

    Raises:
        RejectsError: with the counts and the path of the list.
    """
    counted = {reason: n for reason, n in rejected.items() if reason != "duplicate_id"}
    count = sum(counted.values())
    documents += sum(rejected.values()) - count
    if count <= max_share * (count + documents) or (documents and count < MIN_REJECTED):
        return
    words = ", ".join(f"{number:,} {reason}" for reason, number in sorted(counted.items()))
    raise RejectsError(
        f"source {source!r}: {count:,} of {count + documents:,} records were rejected ({words}), "
        f"more than rejects.max_share {max_share:g} allows; they are listed in {table}: correct "
        "text_column, token_column, the tokenizer or the files, or raise rejects.max_share"
    )


def first_row(table: Path, reasons: Sequence[str]) -> dict[str, Any]:
    """The first row of a list of rejects or notes that has one of the reasons."""
    with pq.ParquetFile(parquet_source(table)) as file:
        for batch in file.iter_batches(use_threads=False):
            for row in batch.to_pylist():
                if row["reason"] in reasons:
                    return row
    raise RejectsError(f"{table} does not list the rejects that were counted; remove the store")
