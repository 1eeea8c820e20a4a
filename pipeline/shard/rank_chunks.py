"""Which chunks of micro-batches a context-parallel rank holds; of several micro-batches at once."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from pipeline.shard.micro_batch import Chunks


class Spans(NamedTuple):
    """Chunks of tokens, int64, (chunks,), ascending by (cp_rank, piece, start); no pads."""

    cp_rank: np.ndarray
    piece: np.ndarray
    start: np.ndarray
    stop: np.ndarray

    def take(self, index: np.ndarray) -> Spans:
        return Spans(*(column[index] for column in self))


class RankChunks(NamedTuple):
    """A rank's chunks of some micro-batches, one micro-batch after the other.

    `counts` has one entry a micro-batch, all else one a chunk. All int64.
    """

    counts: np.ndarray
    """Chunks of each micro-batch."""
    piece: np.ndarray
    """Number of the piece among the pieces of all these micro-batches."""
    piece_start: np.ndarray
    """Where the piece begins in its micro-batch."""
    piece_length: np.ndarray
    start: np.ndarray
    """Where the chunk begins in its piece."""
    length: np.ndarray
    whole: bool
    """Whether these are the pieces themselves, as at degree 1."""


def token_chunks(
    cu_seqlens: np.ndarray, cp_row: Chunks | None, cp_rank: int, cp_size: int
) -> Spans:
    """All ranks' chunks of a micro-batch, without its pads; at degree 1 its pieces, whole.

    Args:
        cu_seqlens: boundaries of the pieces, integers (pieces + 1,).
        cp_row: the micro-batch's row of the CP plan for `cp_size`; None where `cp_size` is 1.
        cp_rank: who asks, 0 <= cp_rank < cp_size.
        cp_size: number of CP ranks.

    Raises:
        ValueError: the rank does not exist, or the row is missing.
    """
    if not 0 <= cp_rank < cp_size:
        raise ValueError(f"cp_rank {cp_rank} is not in 0..{cp_size - 1}")
    if cp_row is None:
        if cp_size != 1:
            raise ValueError(f"cp_size is {cp_size}, but no CP plan was given; only 1 needs none")
        length = np.diff(cu_seqlens).astype(np.int64)
        zeros = np.zeros_like(length)
        return Spans(zeros, np.arange(len(length)), zeros, length)
    columns = (cp_row.cp_rank, cp_row.piece, cp_row.start, cp_row.stop)
    chunks = Spans(*(column.astype(np.int64) for column in columns))
    tokens = chunks.piece >= 0
    return chunks if tokens.all() else chunks.take(tokens)


def whole_pieces(cu_seqlens: np.ndarray, pieces: np.ndarray) -> RankChunks:
    """The chunks of the only rank: all pieces.

    Args:
        cu_seqlens: boundaries of the pieces of each micro-batch, from 0, one after the other.
        pieces: pieces of each micro-batch, int64, (micro-batches,).
    """
    begin, length = _pieces(cu_seqlens, pieces)
    return RankChunks(
        counts=pieces,
        piece=np.arange(len(length)),
        piece_start=begin,
        piece_length=length,
        start=np.zeros_like(length),
        length=length,
        whole=True,
    )


def chunks_of_rank(
    cu_seqlens: np.ndarray, pieces: np.ndarray, table: Spans, chunks: np.ndarray, cp_rank: int
) -> RankChunks:
    """The chunks of one of several ranks.

    Args:
        cu_seqlens: boundaries of the pieces of each micro-batch, from 0, one after the other.
        pieces: pieces of each micro-batch, int64, (micro-batches,).
        table: rows of the CP plan, one micro-batch after the other; may have pads.
        chunks: rows of each micro-batch, int64, (micro-batches,).
        cp_rank: whose; a rank may have none.
    """
    mine = np.flatnonzero((table.cp_rank == cp_rank) & (table.piece >= 0))
    batch = np.repeat(np.arange(len(chunks)), chunks)[mine]
    piece = table.piece[mine] + (np.cumsum(pieces) - pieces)[batch]
    begin, length = _pieces(cu_seqlens, pieces)
    start = table.start[mine].astype(np.int64)
    return RankChunks(
        counts=np.bincount(batch, minlength=len(chunks)),
        piece=piece,
        piece_start=begin[piece],
        piece_length=length[piece],
        start=start,
        length=table.stop[mine].astype(np.int64) - start,
        whole=False,
    )


def _pieces(cu_seqlens: np.ndarray, pieces: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Where each piece begins in its micro-batch, and its length; int64."""
    if len(pieces) == 1:
        begin = cu_seqlens[:-1].astype(np.int64)
        return begin, cu_seqlens[1:] - begin
    place = np.arange(len(cu_seqlens) - len(pieces)) + np.repeat(np.arange(len(pieces)), pieces)
    begin = cu_seqlens[place].astype(np.int64)
    return begin, cu_seqlens[place + 1] - begin
