"""Which tokens of a micro-batch each context-parallel rank computes.

A plan is a list of chunks: tokens [start, stop) of a piece go to a rank. Every token is on exactly
one rank and the ranks' token counts differ by at most one, for any lengths, without padding.
Under a causal mask late tokens cost more than early ones, so a strategy pairs them:

- `per_sequence` cuts the packed sequence in 2 x cp_size chunks; rank r takes r and its mirror.
  Chunks are long, but which of them hold the dear ends of long pieces is luck.
- `per_document` cuts every piece so (WLB-LLM, arXiv 2503.17924, section 5.1). Work comes out
  even, but short pieces make short chunks, which waste attention tiles, and every rank needs keys
  of every piece.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from packer.cp_kernels import cut_per_document, cut_per_sequence, load_ranks
from packer.plan import Int64
from packer.workload import LONGEST_PIECE, SCALE, Workload

_NO_ATTENTION = 1 << 61
"""A crossover at which no area that fits a micro-batch is work."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CPPlan:
    """The chunks of many micro-batches at one CP degree.

    Chunks of row j are `row_offsets[j] : row_offsets[j + 1]`, ascending by (cp_rank, piece,
    start); none is empty, and two of one rank that touch in one piece are one.
    """

    cp_size: int
    strategy: tuple[str, ...]
    """What made each row, (rows,)."""
    row_offsets: Int64
    """(rows + 1,), first 0."""
    cp_rank: np.ndarray
    """int32 (chunks,)."""
    piece: np.ndarray
    """int32 (chunks,), index of the piece in its micro-batch."""
    start: Int64
    """(chunks,), first token in the piece."""
    stop: Int64
    """(chunks,), the token after the last."""
    predicted: Int64
    """(rows, cp_size), work of each rank in the unit of `Workload`, without its constant."""

    def __post_init__(self) -> None:
        rows, chunks = len(self.row_offsets) - 1, len(self.start)
        wanted = {
            "row_offsets": (np.int64, (rows + 1,)),
            "cp_rank": (np.int32, (chunks,)),
            "piece": (np.int32, (chunks,)),
            "start": (np.int64, (chunks,)),
            "stop": (np.int64, (chunks,)),
            "predicted": (np.int64, (rows, self.cp_size)),
        }
        for name, (dtype, shape) in wanted.items():
            array = getattr(self, name)
            if array.dtype != dtype or array.shape != shape:
                raise ValueError(
                    f"CPPlan.{name} is {array.dtype}{list(array.shape)}; it must be "
                    f"{np.dtype(dtype)}{list(shape)}"
                )
        if len(self.strategy) != rows:
            raise ValueError(f"{len(self.strategy)} strategies for {rows} micro-batches; give each")
        if self.row_offsets[0] != 0 or self.row_offsets[-1] != chunks:
            raise ValueError("row_offsets must run from 0 to the number of chunks")

    @property
    def num_rows(self) -> int:
        return len(self.strategy)

    def rows(self, start: int, stop: int) -> CPPlan:
        """Micro-batches `start` to `stop` of these."""
        offsets = self.row_offsets[start : stop + 1]
        chunks = slice(int(offsets[0]), int(offsets[-1]))
        return CPPlan(
            cp_size=self.cp_size,
            strategy=self.strategy[start:stop],
            row_offsets=offsets - offsets[0],
            cp_rank=self.cp_rank[chunks],
            piece=self.piece[chunks],
            start=self.start[chunks],
            stop=self.stop[chunks],
            predicted=self.predicted[start:stop],
        )


def per_sequence(
    piece_tokens: Int64, row_offsets: Int64, *, cp_size: int, workload: Workload
) -> CPPlan:
    """Cut the packed sequence in 2 x cp_size chunks; rank r takes chunks r and 2 cp_size - 1 - r.

    Of T tokens rank r takes T // cp_size, the first T % cp_size ranks one more: the first half of
    them (the larger, where odd) from the front, the rest from the back. Chunks are then split at
    the borders of pieces. Arguments as in `plan_context_parallel`, already checked.

    Example: pieces of 4 and 12 tokens at cp_size 2 are cut every 4 tokens. Rank 0 takes the whole
    first piece and tokens 8..11 of the second, rank 1 tokens 0..7 of the second.
    """
    piece_begin = np.concatenate([np.zeros(1, np.int64), np.cumsum(piece_tokens)])
    rows = len(row_offsets) - 1
    chunks = np.empty((len(piece_tokens) + rows * (2 * cp_size - 1), 4), dtype=np.int64)
    chunk_offsets = np.empty(rows + 1, dtype=np.int64)
    cut_per_sequence(piece_begin, row_offsets, cp_size, chunks, chunk_offsets)
    crossovers = effective_crossovers(piece_tokens, row_offsets, workload)
    return _plan("per_sequence", cp_size, crossovers, chunks, chunk_offsets)


def per_document(
    piece_tokens: Int64, row_offsets: Int64, *, cp_size: int, workload: Workload
) -> CPPlan:
    """Cut every piece in 2 x cp_size chunks; rank r takes chunks r and 2 cp_size - 1 - r of each.

    Tokens left over by the division go one a chunk, in order of chunks, from where the previous
    piece of the micro-batch stopped; carried on like this they come out even. Arguments as in
    `plan_context_parallel`, already checked.

    Example: pieces of 4 and 12 tokens at cp_size 2. Rank 0 takes tokens 0 and 3 of the first
    piece, 0..2 and 9..11 of the second; rank 1 takes 1..2 and 3..8.
    """
    capacity = int(np.minimum(piece_tokens, 2 * cp_size).sum())
    chunks = np.empty((capacity, 4), dtype=np.int64)
    chunk_offsets = np.empty(len(row_offsets), dtype=np.int64)
    cut_per_document(piece_tokens, row_offsets, cp_size, chunks, chunk_offsets)
    crossovers = effective_crossovers(piece_tokens, row_offsets, workload)
    return _plan("per_document", cp_size, crossovers, chunks, chunk_offsets)


Strategy = Callable[..., CPPlan]
"""`(piece_tokens, row_offsets, *, cp_size, workload) -> CPPlan`, as `per_document`."""
STRATEGIES: dict[str, Strategy] = {"per_sequence": per_sequence, "per_document": per_document}


def plan_context_parallel(
    piece_tokens: np.ndarray,
    row_offsets: np.ndarray,
    *,
    cp_size: int,
    strategy: str,
    workload: Workload,
) -> CPPlan:
    """Plan many micro-batches at one CP degree; each row depends on its own pieces alone.

    Args:
        piece_tokens: integers, at least 1 each, (pieces,), the rows' pieces back to back.
        row_offsets: integers (rows + 1,), as `Steps.row_offsets`: row j has the pieces
            `row_offsets[j] : row_offsets[j + 1]`.
        cp_size: number of CP ranks, at least 1.
        strategy: a name in `STRATEGIES`.
        workload: what pieces cost, with which work is predicted.

    Raises:
        ValueError: a bad argument, an empty row or piece, a row above 2^26 tokens.
    """
    if strategy not in STRATEGIES:
        raise ValueError(f'no CP strategy "{strategy}"; known are {", ".join(STRATEGIES)}')
    if cp_size < 1:
        raise ValueError(f"cp_size is {cp_size}; it must be at least 1")
    tokens = np.ascontiguousarray(piece_tokens, dtype=np.int64)
    offsets = np.ascontiguousarray(row_offsets, dtype=np.int64)
    if not len(offsets) or offsets[0] != 0 or offsets[-1] != len(tokens):
        raise ValueError(f"row_offsets must run from 0 to {len(tokens)}, the number of pieces")
    if np.any(np.diff(offsets) <= 0):
        raise ValueError("a micro-batch without pieces: row_offsets must strictly increase")
    if len(tokens):
        shortest, longest_row = int(tokens.min()), int(np.add.reduceat(tokens, offsets[:-1]).max())
        if shortest < 1 or longest_row > LONGEST_PIECE:
            raise ValueError(
                f"the shortest piece has {shortest} tokens and the longest micro-batch "
                f"{longest_row}; pieces need at least 1 and micro-batches at most {LONGEST_PIECE}"
            )
    return STRATEGIES[strategy](tokens, offsets, cp_size=cp_size, workload=workload)


def _plan(
    name: str, cp_size: int, crossovers: Int64, chunks: np.ndarray, chunk_offsets: Int64
) -> CPPlan:
    """A table of chunks, of which the first `chunk_offsets[-1]` are used, as a plan."""
    rows, count = len(chunk_offsets) - 1, int(chunk_offsets[-1])
    cp_rank = chunks[:count, 0].astype(np.int32)
    start, stop = chunks[:count, 2].copy(), chunks[:count, 3].copy()
    tokens = np.zeros((rows, cp_size), dtype=np.int64)
    area = np.zeros((rows, cp_size), dtype=np.int64)
    load_ranks(chunk_offsets, cp_rank, start, stop, tokens, area)
    return CPPlan(
        cp_size=cp_size,
        strategy=(name,) * rows,
        row_offsets=chunk_offsets,
        cp_rank=cp_rank,
        piece=chunks[:count, 1].astype(np.int32),
        start=start,
        stop=stop,
        predicted=predict(tokens, area, crossovers),
    )


def effective_crossovers(piece_tokens: Int64, row_offsets: Int64, workload: Workload) -> Int64:
    """The L at which d^2 / L, over a micro-batch's pieces, is its attention work, (rows,).

    Of the quadratic model that is its crossover. Of others it spreads a micro-batch's attention
    over its ranks by their share of the causal area: exact in sum, but which rank has the cheap
    tokens beyond a window, or the chunks that a profile finds slow, is not seen.

    Args:
        piece_tokens: (pieces,).
        row_offsets: (rows + 1,).
        workload: what pieces cost.
    """
    if workload.is_quadratic:
        return np.full(len(row_offsets) - 1, workload.crossover, dtype=np.int64)
    if not len(piece_tokens):
        return np.empty(0, dtype=np.int64)
    square = np.add.reduceat(piece_tokens * piece_tokens, row_offsets[:-1]) * SCALE
    work = np.add.reduceat(workload.attention_of(piece_tokens), row_offsets[:-1])
    some = np.maximum(work, 1)
    return np.where(work > 0, np.maximum((square + some // 2) // some, 1), _NO_ATTENTION)


def predict(tokens: np.ndarray, area: np.ndarray, crossovers: Int64) -> np.ndarray:
    """Work of ranks, in 1/256 of a linear-token equivalent, rounded once a rank.

    A whole piece of d tokens has about d^2 / 2 query-key pairs, which cost d^2 / L*; so a pair
    costs 2 / L*. Tile padding makes the area, and so the work, a little larger than `Workload.of`.

    Args:
        tokens: of each rank, int64, (rows, cp_size).
        area: tile-padded query-key pairs of each rank, same shape.
        crossovers: L* of each row, (rows,).
    """
    crossover = crossovers[:, None]
    return tokens * SCALE + (2 * SCALE * area + crossover // 2) // crossover
