"""The order in which a set is checked: first that bytes are intact, then what they say."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from pipeline.files.contents import parquet_source
from pipeline.shard import schema
from pipeline.shard.manifest import Manifest, load_manifest
from pipeline.shard.tables import FormatError, read_table
from pipeline.verify.conservation import Conservation
from pipeline.verify.files import as_verify_error, check_files, check_published
from pipeline.verify.parts import SetPart, check_part, records_of, take_records, without_steps
from pipeline.verify.plan_rows import TailPieces, first_bad_piece
from pipeline.verify.policies import check_policies
from pipeline.verify.ran import TAIL, Ran
from pipeline.verify.result import InOrder, Progress, VerifyError, VerifyReport
from pipeline.verify.selection import (
    StreamCounts,
    check_selection,
    passes_of,
)
from pipeline.verify.stores import RawStore, check_stores
from pipeline.verify.totals import StepTable, check_totals
from pipeline.verify.workloads import check_model


def verify(
    directory: str | Path,
    *,
    progress: Progress | None = None,
    scratch: Path | None = None,
    in_order: InOrder = map,
) -> VerifyReport:
    """Re-check every law of a finished directory from its bytes.

    All of the set and of its token stores is read. Memory is bounded by a part; `scratch` takes
    about 100 bytes a piece and 8 bytes a document.

    Args:
        directory: what `steelyard build` wrote.
        progress: called with a stage's name, how much of it is done, and how much there is.
        scratch: an existing directory for temporary files; default: the system's.
        in_order: maps files, parts of stores and parts of the set; what it runs elsewhere must see
            `directory` and `scratch` at the same paths.

    Raises:
        VerifyError: the first offence.
    """
    with opened(directory, scratch) as (manifest, temporary):
        return _verify(manifest, temporary, progress or silent, in_order)


@contextmanager
def opened(directory: str | Path, scratch: Path | None) -> Iterator[tuple[Manifest, Path]]:
    """A set's manifest, and a temporary directory in `scratch`; damage is an offence in here."""
    try:
        with tempfile.TemporaryDirectory(
            prefix="steelyard-verify-", dir=scratch, ignore_cleanup_errors=True
        ) as temporary:
            manifest = load_manifest(directory)
            check_published(manifest)
            yield manifest, Path(temporary)
    except VerifyError:
        raise
    except FormatError as error:
        raise as_verify_error(error) from error


def silent(_stage: str, _done: int, _total: int) -> None:
    """Progress that nobody asked for."""


def _verify(
    manifest: Manifest, scratch: Path, progress: Progress, in_order: InOrder
) -> VerifyReport:
    check_model(manifest)
    check_policies(manifest)
    counts = check_files(manifest, progress, in_order)
    stores, of_stores = check_stores(manifest, scratch, progress, in_order)
    steps, ran = StepTable(manifest), Ran(manifest, stores, scratch)
    tail_source = parquet_source(manifest.directory / "tail.parquet")
    pieces = counts.pieces + pq.read_metadata(tail_source).num_rows
    streams: list[StreamCounts] = []
    tail = [0, 0]
    for segment in range(len(manifest.segments)):
        passes = passes_of(manifest, segment, stores, ran)
        stream = Conservation(manifest, segment, stores, ran, scratch, pieces)
        _check_parts(manifest, segment, stores, steps, stream, scratch, progress, in_order)
        pieces, tokens = check_tail(manifest, segment, stores, stream)
        tail = [tail[0] + pieces, tail[1] + tokens]
        streams.append(stream.check(passes, progress))
        check_selection(manifest, segment, passes, streams[-1])
    check_totals(manifest, steps, tail, streams)
    return VerifyReport(
        files=counts.files + of_stores.files,
        bytes=counts.bytes + of_stores.bytes,
        row_groups=counts.row_groups,
        rows=sum(segment.steps * segment.num_micro_batches for segment in manifest.segments),
        pieces=sum(stream.pieces for stream in streams),
        tokens=steps.tokens,
    )


def _units(
    manifest: Manifest, number: int, stores: list[RawStore], first_step: int, scratch: Path
) -> Iterator[SetPart]:
    """The parts of a segment; where each begins follows from the rows of those before it."""
    segment, light = manifest.segments[number], without_steps(manifest)
    for part in range(segment.first_part, segment.stop_part):
        yield SetPart(
            manifest=light,
            stores=stores,
            part=part,
            first_step=first_step,
            records=_records(scratch, part),
        )
        rows = pq.read_metadata(parquet_source(manifest.plan_path(part))).num_rows
        first_step += rows // segment.num_micro_batches


def _records(scratch: Path, part: int) -> Path:
    return scratch / f"pieces-{part}"


def _check_parts(
    manifest: Manifest,
    number: int,
    stores: list[RawStore],
    steps: StepTable,
    stream: Conservation,
    scratch: Path,
    progress: Progress,
    in_order: InOrder,
) -> None:
    """All parts of a segment."""
    segment = manifest.segments[number]
    found = in_order(check_part, _units(manifest, number, stores, steps.steps, scratch))
    for part, sums in zip(range(segment.first_part, segment.stop_part), found, strict=True):
        progress("parts", part, manifest.num_parts)
        steps.check(sums, segment=number, part=part)
        stream.add(take_records(_records(scratch, part)))
    progress("parts", segment.stop_part, manifest.num_parts)
    if steps.steps != segment.stop_step:
        raise VerifyError(
            f"ends with step {steps.steps - 1}, the segment with step {segment.stop_step - 1}",
            path=manifest.plan_path(segment.stop_part - 1),
        )


def check_tail(
    manifest: Manifest, number: int, stores: list[RawStore], stream: Conservation | None
) -> tuple[int, int]:
    """A segment's tail is sound and less than a step; its pieces and tokens.

    Its pieces go to `stream`, if there is one.

    Raises:
        VerifyError: the first piece that is not, or too many of them.
    """
    path = manifest.directory / "tail.parquet"
    table = read_table(path, schema.TAIL)
    columns = {
        name: table.column(name).combine_chunks().to_numpy(zero_copy_only=False)
        for name in table.column_names
    }
    if any(column.null_count for column in table.columns):
        raise VerifyError("holds a null", path=path)
    if np.any((columns["segment"] < 0) | (columns["segment"] >= len(manifest.segments))):
        raise VerifyError("holds a piece of a segment that does not exist", path=path)
    rows = np.flatnonzero(columns.pop("segment") == number)
    tail = TailPieces(**{name: values[rows].astype(np.int64) for name, values in columns.items()})
    segment = manifest.segments[number]
    offender = first_bad_piece(tail, manifest, number, stores)
    if offender is not None:
        raise VerifyError(f"row {rows[offender[0]]}: {offender[1]}", path=path)
    tokens = int((tail.doc_stop - tail.doc_start).sum())
    if segment.cut:
        placed_end = None if stream is None else stream.placed_end
        _check_cut(manifest, number, tail, rows, placed_end)
    elif tokens >= segment.intake_tokens and len(rows) >= segment.num_micro_batches:
        raise VerifyError(
            f"{len(rows)} pieces of {tokens} tokens are left of segment {number}; a step must be "
            f"emitted while {segment.num_micro_batches} pieces and {segment.intake_tokens} tokens "
            "remain",
            path=path,
        )
    if stream is not None:
        stream.add(records_of(tail, TAIL, rows))
    return len(rows), tokens


def _check_cut(
    manifest: Manifest, number: int, tail: TailPieces, rows: np.ndarray, placed_end: int | None
) -> None:
    """A segment that a fork cut: what did not run might have run after the cut, and no more.

    Where no piece was collected, `placed_end`, the end of the last piece of a row, is None.
    """
    segment = manifest.segments[number]
    if segment.target_tokens != segment.stream_tokens:
        raise VerifyError(
            f"segments.{number} is cut, so its target_tokens {segment.target_tokens} must be its "
            f"stream_tokens {segment.stream_tokens}",
            path=manifest.directory / "manifest.json",
        )
    if placed_end is not None and segment.stream_tokens - placed_end >= segment.context_length:
        raise VerifyError(
            f"segments.{number} is cut, so its stream ends with the last piece that a row holds; "
            f"that ends at {placed_end}, the stream at {segment.stream_tokens}",
            path=manifest.directory / "manifest.json",
        )
    early = tail.position // segment.intake_tokens + segment.max_displacement < segment.steps
    if early.any():
        at = int(np.argmax(early))
        raise VerifyError(
            f"row {rows[at]}: its piece arrived in step "
            f"{segment.first_step + tail.position[at] // segment.intake_tokens} and must have run "
            f"before the segment was cut at step {segment.stop_step}",
            path=manifest.directory / "tail.parquet",
        )
