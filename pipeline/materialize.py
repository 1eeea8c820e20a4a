"""The tokens move once: an external sort by plan position, in two kinds of independent tasks.

`scatter_run` reads one range of the token stores and writes its pieces ordered by plan part;
`assemble_shard` reads one slice of every run and writes one shard. Neither decides anything, both
can be killed and run again, and each holds one plan part's tokens at a time. Scratch needs as much
disk as the tokens themselves, and 56 bytes a piece.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.files.atomic import atomic_path
from pipeline.files.contents import parquet_source
from pipeline.files.url_path import as_path
from pipeline.planning.plan_parts import as_offsets
from pipeline.planning.runs import InverseSlice, read_inverse, run_path
from pipeline.shard import schema
from pipeline.shard.token_store import TokenStore
from pipeline.shard.writer import FileReceipt, write_part


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveJob:
    """What every task of a materialization shares; small enough to send to each.

    `parts` are the numbers of the plan parts, consecutive. `most_taken` is how many tokens of a
    document each source gives at most: S where long ones are truncated. What is behind them is no
    piece's next token.
    """

    root: str
    scratch: str
    stores: tuple[str, ...]
    most_taken: tuple[int, ...]
    dtype: str
    parts: range
    num_groups: int
    rows_per_group: int


@lru_cache(maxsize=64)
def _store(directory: str) -> TokenStore:
    return TokenStore(as_path(directory))


@lru_cache(maxsize=65_536)
def _check_part(directory: str, part: int) -> None:
    """Check a store part's blocks, once a process: shards get digests of their own afterwards."""
    _store(directory).check_blocks(part)


def scatter_run(job: MoveJob, group: int) -> dict[str, int]:
    """Write one run: the group's pieces in the order of plan parts, and of pieces inside a part.

    Returns:
        The unit's receipt: its group, tokens and pieces.
    """
    scratch = Path(job.scratch)
    offsets = np.zeros((len(job.parts) + 1, 2), np.int64)
    with (
        atomic_path(run_path(scratch, group, "tokens")) as tokens_path,
        atomic_path(run_path(scratch, group, "labels")) as labels_path,
        tokens_path.open("wb") as tokens_file,
        labels_path.open("wb") as labels_file,
    ):
        for place, part in enumerate(job.parts):
            pieces = read_inverse(scratch, part, group)
            ids, labels = _gather(job, pieces)
            tokens_file.write(ids.data)
            labels_file.write(labels.data)
            offsets[place + 1] = offsets[place] + (len(ids), len(labels))
    with atomic_path(run_path(scratch, group, "offsets")) as path, path.open("wb") as file:
        np.save(file, offsets)
    return {"group": group, "tokens": int(offsets[-1, 0]), "pieces": int(offsets[-1, 1])}


def assemble_shard(job: MoveJob, part: int) -> FileReceipt:
    """Write one shard: the plan part's rows with their tokens and last labels."""
    root, name = as_path(job.root), schema.part_name(part)
    plan = pq.read_table(parquet_source(root / "plan" / f"{name}.parquet"))
    row_offsets = plan.column("doc_id").combine_chunks().offsets.to_numpy().astype(np.int64)
    piece_tokens = _flat(plan, "doc_stop") - _flat(plan, "doc_start")
    starts = np.concatenate([[0], np.cumsum(piece_tokens)])  # (pieces + 1,)
    ids = np.empty(starts[-1], job.dtype)
    labels = np.empty(len(piece_tokens), np.int64)
    filled = 0
    for group in range(job.num_groups):
        filled += _place(job, part, group, starts, ids, labels)
    if filled != len(ids):
        raise RuntimeError(f"shard {name}: {filled} tokens came for {len(ids)} planned")
    table = _shard_table(plan, ids, labels, starts[row_offsets], row_offsets, job.dtype)
    return write_part(table, root, f"shards/{name}.parquet", rows_per_group=job.rows_per_group)


def _gather(job: MoveJob, pieces: InverseSlice) -> tuple[np.ndarray, np.ndarray]:
    """Token ids of the pieces, back to back, and each piece's last label (int64)."""
    ids = np.empty(int(pieces.tokens.sum()), job.dtype)
    labels = np.full(len(pieces.order), schema.NO_LABEL, np.int64)
    starts = np.cumsum(pieces.tokens) - pieces.tokens
    for source in np.unique(pieces.source):
        store = _store(job.stores[source])
        mine = np.flatnonzero(pieces.source == source)
        doc_id, start, stop = pieces.doc_id[mine], pieces.doc_start[mine], pieces.doc_stop[mine]
        for part in np.unique(store.part_of(doc_id)).tolist():
            _check_part(job.stores[source], part)
        found = store.gather(doc_id, start, stop)
        _scatter(ids, starts[mine], stop - start, found)
        inside = stop < np.minimum(store.lengths_of(doc_id), job.most_taken[source])
        labels[mine[inside]] = store.gather(doc_id[inside], stop[inside], stop[inside] + 1)
    return ids, labels


def _place(
    job: MoveJob, part: int, group: int, starts: np.ndarray, ids: np.ndarray, labels: np.ndarray
) -> int:
    """Put one run's slice where the plan says; the number of tokens placed."""
    scratch = Path(job.scratch)
    offsets = np.load(run_path(scratch, group, "offsets"), mmap_mode="r")
    place = part - job.parts.start
    (first, first_piece), (last, last_piece) = offsets[place], offsets[place + 1]
    if first_piece == last_piece:
        return 0
    pieces = read_inverse(scratch, part, group)
    size = np.dtype(job.dtype).itemsize
    found = np.fromfile(
        run_path(scratch, group, "tokens"), job.dtype, last - first, offset=first * size
    )
    _scatter(ids, starts[pieces.order], pieces.tokens, found)
    labels[pieces.order] = np.fromfile(
        run_path(scratch, group, "labels"),
        np.int64,
        last_piece - first_piece,
        offset=first_piece * 8,
    )
    return len(found)


def _scatter(out: np.ndarray, starts: np.ndarray, lengths: np.ndarray, values: np.ndarray) -> None:
    """Copy ragged `values`, back to back, to `out[starts[i] : starts[i] + lengths[i]]`.

    Args:
        out: written in place.
        starts: int64 (pieces,), where each goes.
        lengths: int64 (pieces,).
        values: the pieces' values, as many as the lengths add up to.
    """
    shift = starts - (np.cumsum(lengths) - lengths)
    out[np.arange(len(values)) + np.repeat(shift, lengths)] = values


def _shard_table(
    plan: pa.Table,
    ids: np.ndarray,
    labels: np.ndarray,
    token_offsets: np.ndarray,
    row_offsets: np.ndarray,
    dtype: str,
) -> pa.Table:
    made = {
        "tokens": _lists(token_offsets, ids),
        "last_labels": _lists(row_offsets, labels),
    }
    columns = [made[name] if name in made else plan.column(name) for name in _names(dtype)]
    return pa.table(columns, schema=schema.shard_schema(dtype))


def _names(dtype: str) -> Sequence[str]:
    return schema.shard_schema(dtype).names


def _lists(offsets: np.ndarray, values: np.ndarray) -> pa.ListArray:
    return pa.ListArray.from_arrays(as_offsets(offsets), pa.array(values))


def _flat(table: pa.Table, column: str) -> np.ndarray:
    return table.column(column).combine_chunks().flatten().to_numpy()
