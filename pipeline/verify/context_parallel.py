"""CP plans: every token on exactly one rank, in even shares, as few chunks as can be."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pipeline.shard import schema
from pipeline.shard.manifest import Manifest
from pipeline.verify.part import PartTable
from pipeline.verify.plan_rows import PlanPart
from pipeline.verify.shard_rows import check_same_rows


@dataclass(frozen=True)
class _ChunkTable:
    """Chunks of a part, flat, int64, one entry a chunk."""

    table: PartTable
    offsets: np.ndarray
    """Where each row's chunks begin, (rows + 1,)."""
    row: np.ndarray
    cp_rank: np.ndarray
    piece: np.ndarray
    start: np.ndarray
    stop: np.ndarray


def check_cp_part(manifest: Manifest, part: int, plan: PlanPart, cp_size: int) -> None:
    """Check a part of a CP plan against its part of the plan.

    Raises:
        VerifyError: the first row that breaks a law.
    """
    table = PartTable(manifest.cp_path(part, cp_size), schema.CP_PLAN)
    check_same_rows(table, plan.table, ("step", "slot"))
    table.require(
        np.diff(table.offsets("predicted")) == cp_size,
        lambda _: f"'predicted' must have {cp_size} entries, one a CP rank",
    )
    chunks = _flatten(table)
    _check_chunks(chunks, plan, cp_size)
    _check_order(chunks)
    _check_tiling(chunks, plan)
    _check_shares(chunks, cp_size)


def _flatten(table: PartTable) -> _ChunkTable:
    offsets = table.offsets("cp_rank")
    for name in ("piece", "start", "stop"):
        table.require(
            np.diff(table.offsets(name)) == np.diff(offsets),
            lambda _, name=name: f"{name!r} and 'cp_rank' have different lengths",
        )
    names = ("cp_rank", "piece", "start", "stop")
    return _ChunkTable(
        table=table,
        offsets=offsets,
        row=np.repeat(np.arange(table.num_rows), np.diff(offsets)),
        **{name: table.integers(name) for name in names},
    )


def _check_chunks(chunks: _ChunkTable, plan: PlanPart, cp_size: int) -> None:
    """Each chunk is a non-empty part of a piece of its row, on a rank that exists."""
    num_pieces = np.diff(plan.offsets)[chunks.row]
    chunks.table.require_each(
        (chunks.cp_rank >= 0) & (chunks.cp_rank < cp_size),
        chunks.offsets,
        lambda i: f"cp_rank {chunks.cp_rank[i]} is not in 0..{cp_size - 1}",
    )
    chunks.table.require_each(
        (chunks.piece >= 0) & (chunks.piece < num_pieces),
        chunks.offsets,
        lambda i: (
            f"piece {chunks.piece[i]} is not in 0..{num_pieces[i] - 1}; padding has no place in "
            "version 1"
        ),
    )
    length = plan.piece_tokens[plan.offsets[chunks.row] + chunks.piece]
    chunks.table.require_each(
        (chunks.start >= 0) & (chunks.start < chunks.stop) & (chunks.stop <= length),
        chunks.offsets,
        lambda i: (
            f"chunk [{chunks.start[i]}, {chunks.stop[i]}) is not a non-empty part of a piece of "
            f"{length[i]} tokens"
        ),
    )


def _check_order(chunks: _ChunkTable) -> None:
    """Chunks ascend by rank, piece and start; those of a rank that touch are one."""
    same_row, rank, piece = (
        np.diff(values, prepend=-1) for values in (chunks.row, chunks.cp_rank, chunks.piece)
    )
    same_piece = (same_row == 0) & (rank == 0) & (piece == 0)
    gap = chunks.start - np.concatenate([[-1], chunks.stop[:-1]])
    ascending = (same_row > 0) | (rank > 0) | ((rank == 0) & (piece > 0)) | same_piece
    chunks.table.require_each(
        ascending & (~same_piece | (gap >= 0)),
        chunks.offsets,
        lambda _: "chunks must ascend by cp_rank, piece and start",
    )
    chunks.table.require_each(
        ~same_piece | (gap > 0),
        chunks.offsets,
        lambda _: "it touches the chunk before it, of the same rank and piece; they must be one",
    )


def _check_tiling(chunks: _ChunkTable, plan: PlanPart) -> None:
    """In every piece the chunks of all ranks lie end to end."""
    piece = plan.offsets[chunks.row] + chunks.piece
    order = np.lexsort((chunks.start, piece))
    piece, start, stop = piece[order], chunks.start[order], chunks.stop[order]
    first = np.diff(piece, prepend=-1) != 0
    expected = np.where(first, 0, np.concatenate([[0], stop[:-1]]))
    good = np.ones(len(order), np.bool_)
    good[order] = start == expected
    chunks.table.require_each(
        good,
        chunks.offsets,
        lambda i: (
            f"token {chunks.start[i]} of piece {chunks.piece[i]} is where tiling breaks: "
            "every token must be in exactly one chunk"
        ),
    )
    end = np.zeros(len(plan.piece_tokens), np.int64)
    np.maximum.at(end, piece, stop)
    plan_table, length = chunks.table, plan.piece_tokens
    plan_table.require_each(
        end == length,
        plan.offsets,
        lambda i: f"of a piece of {length[i]} tokens, those from {end[i]} are in no chunk",
    )


def _check_shares(chunks: _ChunkTable, cp_size: int) -> None:
    tokens = np.zeros(chunks.table.num_rows * cp_size, np.int64)
    np.add.at(tokens, chunks.row * cp_size + chunks.cp_rank, chunks.stop - chunks.start)
    tokens = tokens.reshape(-1, cp_size)
    chunks.table.require(
        tokens.max(axis=1) - tokens.min(axis=1) <= 1,
        lambda row: f"ranks hold {tokens[row].tolist()} tokens; they may differ by one",
    )
