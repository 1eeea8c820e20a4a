"""How a source's files are cut into splits.

A split is what one task reads and one part of the store holds. Splits are ordered as their records
are, and a record belongs to the split that holds its first byte, so the documents of a source and
their order depend on its files alone, not on where the cuts fall.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import TypeAlias

import pyarrow as pa

from pipeline.files.storage import open_random
from pipeline.reading import megatron
from pipeline.reading.arrow_ipc import ArrowError, batch_spans, read_schema
from pipeline.reading.formats import resolve_formats
from pipeline.reading.listing import InputFile, SourceError
from pipeline.reading.records.compressed import COMPRESSIONS
from pipeline.reading.text_columns import check_columns, open_parquet
from pipeline.reading.token_columns import check_token_column, row_group_bytes
from pipeline.settings.documents import SourceConfig

_Span: TypeAlias = tuple[tuple[int, ...], int, int, int]
"""A split's files, start, stop and num_bytes."""
_Row: TypeAlias = tuple[int, "InputFile"]
"""A file and its row in inputs.parquet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """What one task reads: a range of one file, or some whole files.

    `files` are rows of the inputs, `names` and `paths` what and where these are. `[start, stop)`
    counts bytes of a JSONL or Arrow file, row groups of a Parquet file, documents of a Megatron
    pair (whose .idx and .bin are the `files`), and files where files are taken whole (text, and
    compressed JSONL). `num_bytes` is about what there is to read, for a measure of progress.
    """

    number: int
    format: str
    files: tuple[int, ...]
    names: tuple[str, ...]
    paths: tuple[str, ...]
    start: int
    stop: int
    num_bytes: int

    @property
    def unit(self) -> str:
        """What `start` and `stop` count, in words."""
        units = {
            "jsonl": "bytes",
            "arrow": "bytes",
            "parquet": "row groups",
            "megatron": "documents",
        }
        return units.get(self.format, "files")


def plan_splits(
    source: SourceConfig, inputs: Sequence[InputFile], *, split_bytes: int
) -> tuple[Split, ...]:
    """Cut a source into splits of about `split_bytes`.

    Plain JSONL is cut at any byte, Parquet between row groups (by the text column's uncompressed
    size), Arrow between record batches, a Megatron pair between documents; text files are grouped
    whole, and a compressed JSONL file is one split, since it can only be read from its start. An
    empty file of records has no split.

    Raises:
        SourceError: undecidable format, a file that is not of its format, one without the text or
            token column, or a Megatron pair that does not agree with itself.
    """
    spans = [
        (kind, span)
        for kind, rows in groupby(enumerate(resolve_formats(source, inputs)), key=itemgetter(1))
        for span in _spans(kind, source, [(row, inputs[row]) for row, _ in rows], split_bytes)
    ]
    return tuple(
        Split(
            number=number,
            format=kind,
            files=files,
            names=tuple(inputs[file].name for file in files),
            paths=tuple(inputs[file].path for file in files),
            start=start,
            stop=stop,
            num_bytes=num_bytes,
        )
        for number, (kind, (files, start, stop, num_bytes)) in enumerate(spans)
    )


def _spans(
    kind: str, source: SourceConfig, files: Sequence[_Row], split_bytes: int
) -> Iterator[_Span]:
    """The splits of consecutive files of one format."""
    if kind == "text":
        return _grouped_spans(files, split_bytes)
    if kind == "parquet":
        return _row_group_spans(source, files, split_bytes)
    if kind == "arrow":
        return _batch_spans(source, files, split_bytes)
    if kind == "megatron":
        return _document_spans(files, split_bytes)
    return _byte_spans(files, split_bytes)


def _byte_spans(files: Sequence[_Row], split_bytes: int) -> Iterator[_Span]:
    for row, file in files:
        if file.bytes and file.name.endswith(COMPRESSIONS):
            yield (row,), 0, 1, file.bytes
            continue
        for start in range(0, file.bytes, split_bytes):
            stop = min(start + split_bytes, file.bytes)
            yield (row,), start, stop, stop - start


def _row_group_spans(
    source: SourceConfig, files: Sequence[_Row], split_bytes: int
) -> Iterator[_Span]:
    for row, file in files:
        sizes = _row_group_bytes(file.path, source) if file.bytes else []
        for start, stop in _consecutive(sizes, split_bytes):
            yield (row,), start, stop, sum(sizes[start:stop])


def _batch_spans(source: SourceConfig, files: Sequence[_Row], split_bytes: int) -> Iterator[_Span]:
    for row, file in files:
        spans = _record_batches(file.path, source) if file.bytes else []
        for first, last in _consecutive([stop - start for start, stop in spans], split_bytes):
            start, stop = spans[first][0], spans[last - 1][1]
            yield (row,), start, stop, stop - start


def _document_spans(files: Sequence[_Row], split_bytes: int) -> Iterator[_Span]:
    rows = {file.path: row for row, file in files}
    for row, file in files:
        if not file.path.endswith(".idx"):
            continue
        index = megatron.open_index(file.path)
        megatron.check_index(index)
        megatron.check_bin(index)
        for start, stop in megatron.cuts(index, split_bytes):
            num_bytes = index.offset_of(stop) - index.offset_of(start)
            yield (row, rows[index.bin_path]), start, stop, num_bytes


def _grouped_spans(files: Sequence[_Row], split_bytes: int) -> Iterator[_Span]:
    sizes = [file.bytes for _, file in files]
    for start, stop in _consecutive(sizes, split_bytes):
        rows = tuple(row for row, _ in files[start:stop])
        yield rows, 0, stop - start, sum(sizes[start:stop])


def _consecutive(sizes: Sequence[int], limit: int) -> Iterator[tuple[int, int]]:
    """Ranges of consecutive places whose sizes sum to at most `limit`, or of one larger one."""
    start = total = 0
    for place, size in enumerate(sizes):
        if place > start and total + size > limit:
            yield start, place
            start, total = place, 0
        total += size
    if start < len(sizes):
        yield start, len(sizes)


def _row_group_bytes(path: str, source: SourceConfig) -> list[int]:
    """Uncompressed bytes of the text or token column in each row group."""
    if source.token_column is not None:
        return row_group_bytes(path, source.token_column)
    text_column = source.text_column
    with open_parquet(path, text_column) as file:
        metadata = file.metadata
        leaves = [metadata.schema.column(i).path for i in range(metadata.num_columns)]
        column = leaves.index(text_column)
        return [
            metadata.row_group(group).column(column).total_uncompressed_size
            for group in range(metadata.num_row_groups)
        ]


def _record_batches(path: str, source: SourceConfig) -> list[tuple[int, int]]:
    """Where each record batch lies in an Arrow file or stream with a text or token column."""
    with open_random(path) as file:
        try:
            if source.token_column is not None:
                check_token_column(path, read_schema(file), source.token_column)
            else:
                check_columns(path, read_schema(file), source.text_column)
            return batch_spans(file)
        except MemoryError:  # Arrow's is an ArrowException too, and says nothing of the file
            raise
        except (ArrowError, pa.ArrowException) as error:
            raise SourceError(f"{path} cannot be read as Arrow: {error}") from error
