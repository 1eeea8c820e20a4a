"""CP plans: every token on exactly one rank, in even shares, as few chunks as can be.

Pads, where the manifest says that the plan has them, are placed at the end of their piece; from
there on a padded piece is checked as if it were one of tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pipeline.shard import schema
from pipeline.shard.manifest import Manifest
from pipeline.shard.padding import place_pads
from pipeline.verify.cp_predictions import check_predictions
from pipeline.verify.cp_work import ChunkList, degree_of
from pipeline.verify.part import PartTable
from pipeline.verify.plan_rows import PlanPart
from pipeline.verify.result import VerifyError
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


@dataclass(frozen=True)
class _Placed:
    """Chunks as parts `[begin, end)` of padded pieces, int64, one entry a chunk."""

    piece: np.ndarray
    """Number of the piece in the part of the plan, of pads too."""
    begin: np.ndarray
    end: np.ndarray
    length: np.ndarray
    """Tokens and pads of each of the part's pieces, (pieces,)."""


def check_cp_part(manifest: Manifest, part: int, plan: PlanPart, cp_size: int) -> None:
    """Check a part of a CP plan against its part of the plan.

    Raises:
        VerifyError: the first row that breaks a law.
    """
    pad_multiple = _pad_multiple(manifest, cp_size)
    table = PartTable(manifest.cp_path(part, cp_size), schema.CP_PLAN)
    check_same_rows(table, plan.table, ("step", "slot"))
    table.require(
        np.diff(table.offsets("predicted")) == cp_size,
        lambda _: f"'predicted' must have {cp_size} entries, one a CP rank",
    )
    chunks = _flatten(table)
    padded = -(-plan.piece_tokens // pad_multiple) * pad_multiple
    _check_chunks(chunks, plan, cp_size, padded)
    placed = _place(chunks, plan, padded)
    _check_order(chunks, placed)
    _check_tiling(chunks, placed, plan)
    _check_shares(chunks, cp_size)
    if pad_multiple > 1:
        _check_halves(chunks, placed, cp_size)
    names = ("row", "cp_rank", "piece", "start", "stop")
    listed = ChunkList(**{name: getattr(chunks, name) for name in names})
    check_predictions(table, plan, listed, degree_of(manifest, cp_size))


def _pad_multiple(manifest: Manifest, cp_size: int) -> int:
    value = manifest.cp[str(cp_size)].get("pad_multiple", 1)
    is_number = isinstance(value, int) and not isinstance(value, bool)
    if not is_number or value < 1 or (value > 1 and value % (2 * cp_size)) or value >= 1 << 31:
        raise VerifyError(
            f"cp.{cp_size}.pad_multiple is {value!r}; it must be 1 or a multiple of 2 x {cp_size}, "
            "below 2^31",
            path=manifest.directory / "manifest.json",
        )
    return value


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


def _check_chunks(chunks: _ChunkTable, plan: PlanPart, cp_size: int, padded: np.ndarray) -> None:
    """Each chunk is a non-empty part of a piece or of the pads of its row, on a rank that exists.

    Args:
        chunks: the table.
        plan: its part of the plan.
        cp_size: its degree.
        padded: tokens and pads of each piece, (pieces,).
    """
    table, row, piece = chunks.table, chunks.row, chunks.piece
    num_pieces = np.diff(plan.offsets)[row]
    table.require_each(
        (chunks.cp_rank >= 0) & (chunks.cp_rank < cp_size),
        chunks.offsets,
        lambda i: f"cp_rank {chunks.cp_rank[i]} is not in 0..{cp_size - 1}",
    )
    num_pads = plan.row_sums(padded - plan.piece_tokens)
    is_pad = piece == -1
    table.require_each(
        (piece >= 0) & (piece < num_pieces) | is_pad & (num_pads[row] > 0),
        chunks.offsets,
        lambda i: (
            f"piece {piece[i]} is not in 0..{num_pieces[i] - 1}; padding (-1) has a place only "
            "where 'pad_multiple' of the degree, in manifest.json, makes pads"
        ),
    )
    length = np.where(
        is_pad, num_pads[row], plan.piece_tokens[plan.offsets[row] + np.maximum(piece, 0)]
    )
    table.require_each(
        (chunks.start >= 0) & (chunks.start < chunks.stop) & (chunks.stop <= length),
        chunks.offsets,
        lambda i: (
            f"chunk [{chunks.start[i]}, {chunks.stop[i]}) is not a non-empty part of "
            + (f"{length[i]} pads" if is_pad[i] else f"a piece of {length[i]} tokens")
        ),
    )
    total, most = plan.row_sums(padded), plan.segment.max_tokens
    table.require(
        total <= most,
        lambda i: f"{total[i]} tokens and pads, at most {most} are allowed",
    )


def _place(chunks: _ChunkTable, plan: PlanPart, padded: np.ndarray) -> _Placed:
    """Where chunks lie in their padded pieces; pads are at most one piece's each."""
    piece = plan.offsets[chunks.row] + np.maximum(chunks.piece, 0)
    begin, is_pad = chunks.start.copy(), chunks.piece == -1
    if is_pad.any():
        pads = padded - plan.piece_tokens
        before = (np.cumsum(pads) - pads)[plan.offsets[:-1]]  # in the rows before, (rows,)
        number = before[chunks.row[is_pad]] + chunks.start[is_pad]
        piece[is_pad], begin[is_pad] = place_pads(number, plan.piece_tokens, padded)
    end = begin + chunks.stop - chunks.start
    chunks.table.require_each(
        end <= padded[piece],
        chunks.offsets,
        lambda i: f"pads [{chunks.start[i]}, {chunks.stop[i]}) are of more than one piece",
    )
    return _Placed(piece=piece, begin=begin, end=end, length=padded)


def _check_order(chunks: _ChunkTable, placed: _Placed) -> None:
    """Chunks ascend by rank, piece and place in it; those of a rank that touch are one."""
    same_row, rank, piece = (
        np.diff(values, prepend=-1) for values in (chunks.row, chunks.cp_rank, placed.piece)
    )
    same_piece = (same_row == 0) & (rank == 0) & (piece == 0)
    gap = placed.begin - np.concatenate([[-1], placed.end[:-1]])
    ascending = (same_row > 0) | (rank > 0) | ((rank == 0) & (piece > 0)) | same_piece
    chunks.table.require_each(
        ascending & (~same_piece | (gap >= 0)),
        chunks.offsets,
        lambda _: "chunks must ascend by cp_rank, piece and start, pads last in their piece",
    )
    same_kind = same_piece & (np.diff(chunks.piece, prepend=-2) == 0)
    chunks.table.require_each(
        ~same_kind | (gap > 0),
        chunks.offsets,
        lambda _: "it touches the chunk before it, of the same rank and piece; they must be one",
    )


def _check_tiling(chunks: _ChunkTable, placed: _Placed, plan: PlanPart) -> None:
    """In every padded piece the chunks of all ranks lie end to end."""
    order = np.lexsort((placed.begin, placed.piece))
    piece, begin, end = placed.piece[order], placed.begin[order], placed.end[order]
    first = np.diff(piece, prepend=-1) != 0
    expected = np.where(first, 0, np.concatenate([[0], end[:-1]]))
    good = np.ones(len(order), np.bool_)
    good[order] = begin == expected
    chunks.table.require_each(
        good,
        chunks.offsets,
        lambda i: (
            f"pad {chunks.start[i]} is where tiling breaks: every pad must be in exactly one chunk"
            if chunks.piece[i] == -1
            else f"token {chunks.start[i]} of piece {chunks.piece[i]} is where tiling breaks: "
            "every token must be in exactly one chunk"
        ),
    )
    covered = np.zeros(len(placed.length), np.int64)
    np.maximum.at(covered, piece, end)
    chunks.table.require_each(
        covered == placed.length,
        plan.offsets,
        lambda i: (
            f"of a piece of {placed.length[i]} tokens{_with_pads(placed, plan, i)}, those from "
            f"{covered[i]} are in no chunk"
        ),
    )


def _with_pads(placed: _Placed, plan: PlanPart, piece: int) -> str:
    return " and pads" if placed.length[piece] > plan.piece_tokens[piece] else ""


def _check_shares(chunks: _ChunkTable, cp_size: int) -> None:
    """Ranks hold equally many tokens but for one; with pads, whose sum cp_size divides, just so."""
    tokens = np.zeros(chunks.table.num_rows * cp_size, np.int64)
    np.add.at(tokens, chunks.row * cp_size + chunks.cp_rank, chunks.stop - chunks.start)
    tokens = tokens.reshape(-1, cp_size)
    chunks.table.require(
        tokens.max(axis=1) - tokens.min(axis=1) <= 1,
        lambda row: f"ranks hold {tokens[row].tolist()} tokens; they may differ by one",
    )


def _check_halves(chunks: _ChunkTable, placed: _Placed, cp_size: int) -> None:
    """Rank r holds of 2 x cp_size equal parts of a padded piece numbers r and 2 cp_size - 1 - r."""
    part = placed.length[placed.piece] // (2 * cp_size)
    first, last = placed.begin // part, (placed.end - 1) // part
    mirror = 2 * cp_size - 1 - chunks.cp_rank
    mine = ((first == chunks.cp_rank) | (first == mirror)) & (
        (last == first) | ((last == mirror) & (last == first + 1))
    )
    chunks.table.require_each(
        mine,
        chunks.offsets,
        lambda i: (
            f"it lies in parts {first[i]} to {last[i]} of the {2 * cp_size} equal parts of its "
            f"padded piece; rank {chunks.cp_rank[i]} holds only {chunks.cp_rank[i]} and {mirror[i]}"
        ),
    )
