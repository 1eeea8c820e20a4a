"""The order in which a set is checked: first that bytes are intact, then what they say."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np

from pipeline.shard import schema
from pipeline.shard.manifest import Manifest, load_manifest
from pipeline.shard.tables import FormatError, read_table
from pipeline.verify.conservation import Conservation
from pipeline.verify.context_parallel import check_cp_part
from pipeline.verify.files import as_verify_error, check_files
from pipeline.verify.plan_rows import PlanPart, TailPieces, check_plan_part, first_bad_piece
from pipeline.verify.ran import PIECE, TAIL, Ran
from pipeline.verify.result import Progress, VerifyError, VerifyReport
from pipeline.verify.selection import (
    StreamCounts,
    check_policies,
    check_selection,
    passes_of,
)
from pipeline.verify.shard_rows import check_shard_part
from pipeline.verify.stores import RawStore, check_store
from pipeline.verify.totals import StepTable, check_totals
from pipeline.verify.workloads import check_model


def verify(
    directory: str | Path, *, progress: Progress | None = None, scratch: Path | None = None
) -> VerifyReport:
    """Re-check every law of a finished directory from its bytes.

    All of the set and of its token stores is read. Memory is bounded by a part; `scratch` takes
    about 100 bytes a piece and 8 bytes a document.

    Args:
        directory: what `steelyard build` wrote.
        progress: called with a stage's name, how much of it is done, and how much there is.
        scratch: an existing directory for temporary files; default: the system's.

    Raises:
        VerifyError: the first offence.
    """
    tell = progress or (lambda _stage, _done, _total: None)
    try:
        with tempfile.TemporaryDirectory(prefix="steelyard-verify-", dir=scratch) as temporary:
            return _verify(load_manifest(directory), Path(temporary), tell)
    except VerifyError:
        raise
    except FormatError as error:
        raise as_verify_error(error) from error


def _verify(manifest: Manifest, scratch: Path, progress: Progress) -> VerifyReport:
    check_model(manifest)
    check_policies(manifest)
    counts = check_files(manifest, progress)
    stores, store_files, store_bytes = [], 0, 0
    for index in range(len(manifest.sources)):
        store, files, num_bytes = check_store(manifest, index, scratch, progress)
        stores.append(store)
        store_files, store_bytes = store_files + files, store_bytes + num_bytes
    steps, ran = StepTable(manifest), Ran(manifest, stores, scratch)
    streams: list[StreamCounts] = []
    tail = [0, 0]
    for segment in range(len(manifest.segments)):
        passes = passes_of(manifest, segment, stores, ran)
        stream = Conservation(manifest, segment, stores, ran, scratch)
        _check_parts(manifest, segment, stores, steps, stream, progress)
        pieces, tokens = _check_tail(manifest, segment, stores, stream)
        tail = [tail[0] + pieces, tail[1] + tokens]
        streams.append(stream.check(passes, progress))
        check_selection(manifest, segment, passes, streams[-1])
    check_totals(manifest, steps, tail, streams)
    return VerifyReport(
        files=counts.files + store_files,
        bytes=counts.bytes + store_bytes,
        row_groups=counts.row_groups,
        rows=sum(segment.steps * segment.num_micro_batches for segment in manifest.segments),
        pieces=sum(stream.pieces for stream in streams),
        tokens=steps.tokens,
    )


def _check_parts(
    manifest: Manifest,
    number: int,
    stores: list[RawStore],
    steps: StepTable,
    stream: Conservation,
    progress: Progress,
) -> None:
    """All parts of a segment."""
    segment = manifest.segments[number]
    for part in range(segment.first_part, segment.stop_part):
        progress("parts", part, manifest.num_parts)
        plan = check_plan_part(manifest, stores, part, steps.steps)
        check_shard_part(manifest, stores, part, plan)
        for cp_size in manifest.cp_sizes:
            check_cp_part(manifest, part, plan, cp_size)
        steps.check(plan, segment=number, part=part)
        stream.add(_records(plan, part, plan.piece_row))
    progress("parts", segment.stop_part, manifest.num_parts)
    if steps.steps != segment.stop_step:
        raise VerifyError(
            f"ends with step {steps.steps - 1}, the segment with step {segment.stop_step - 1}",
            path=manifest.plan_path(segment.stop_part - 1),
        )


def _check_tail(
    manifest: Manifest, number: int, stores: list[RawStore], stream: Conservation
) -> tuple[int, int]:
    """A segment's tail is sound and less than a step; its pieces and tokens."""
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
        _check_cut(manifest, number, tail, rows, stream.placed_end)
    elif tokens >= segment.intake_tokens and len(rows) >= segment.num_micro_batches:
        raise VerifyError(
            f"{len(rows)} pieces of {tokens} tokens are left of segment {number}; a step must be "
            f"emitted while {segment.num_micro_batches} pieces and {segment.intake_tokens} tokens "
            "remain",
            path=path,
        )
    stream.add(_records(tail, TAIL, rows))
    return len(rows), tokens


def _check_cut(
    manifest: Manifest, number: int, tail: TailPieces, rows: np.ndarray, placed_end: int
) -> None:
    """A segment that a fork cut: what did not run might have run after the cut, and no more."""
    segment = manifest.segments[number]
    if segment.target_tokens != segment.stream_tokens:
        raise VerifyError(
            f"segments.{number} is cut, so its target_tokens {segment.target_tokens} must be its "
            f"stream_tokens {segment.stream_tokens}",
            path=manifest.directory / "manifest.json",
        )
    if segment.stream_tokens - placed_end >= segment.context_length:
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


def _records(pieces: PlanPart | TailPieces, part: int, row: np.ndarray) -> np.ndarray:
    records = np.empty(len(row), PIECE)
    records["position"], records["doc_id"] = pieces.position, pieces.doc_id
    records["start"], records["stop"] = pieces.doc_start, pieces.doc_stop
    records["source"], records["epoch"] = pieces.source, pieces.epoch
    records["part"], records["row"] = part, row
    return records
