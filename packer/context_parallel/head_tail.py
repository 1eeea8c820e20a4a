"""Strategies that give rank r the r-th chunk of 2 x cp_size and its mirror.

Under a causal mask late tokens cost more than early ones; a chunk and its mirror cost together what
the two in the middle do.
"""

from __future__ import annotations

import math

import numpy as np

from packer.context_parallel.kernels_head_tail import (
    cut_padded,
    cut_per_document,
    cut_per_sequence,
)
from packer.context_parallel.options import CPCost, CPOptions
from packer.context_parallel.plan import ChunkTable
from packer.plan import Int64


def per_sequence(
    piece_tokens: Int64, row_offsets: Int64, cp_size: int, cost: CPCost, options: CPOptions
) -> ChunkTable:
    """Cut the packed sequence in 2 x cp_size chunks; rank r takes chunks r and 2 cp_size - 1 - r.

    Of T tokens rank r takes T // cp_size, the first T % cp_size ranks one more: the first half of
    them (the larger, where odd) from the front, the rest from the back. Chunks are then split at
    the borders of pieces. Chunks are long, but which of them hold the dear ends of long pieces is
    luck.

    Example: pieces of 4 and 12 tokens at cp_size 2 are cut every 4 tokens. Rank 0 takes the whole
    first piece and tokens 8..11 of the second, rank 1 tokens 0..7 of the second.
    """
    piece_begin = np.concatenate([np.zeros(1, np.int64), np.cumsum(piece_tokens)])
    table = ChunkTable.empty(
        len(piece_tokens) + (len(row_offsets) - 1) * (2 * cp_size - 1), row_offsets
    )
    cut_per_sequence(piece_begin, row_offsets, cp_size, table.chunks, table.offsets)
    return table


def per_document(
    piece_tokens: Int64, row_offsets: Int64, cp_size: int, cost: CPCost, options: CPOptions
) -> ChunkTable:
    """Cut every piece in 2 x cp_size chunks; rank r takes chunks r and 2 cp_size - 1 - r of each.

    Tokens left over by the division go one a chunk, in order of chunks, from where the previous
    piece of the micro-batch stopped; carried on like this they come out even (WLB-LLM, arXiv
    2503.17924, section 5.1). Work comes out even, but short pieces make short chunks, which waste
    attention tiles, and every rank needs keys of every piece.

    Example: pieces of 4 and 12 tokens at cp_size 2. Rank 0 takes tokens 0 and 3 of the first
    piece, 0..2 and 9..11 of the second; rank 1 takes 1..2 and 3..8.
    """
    table = ChunkTable.empty(int(np.minimum(piece_tokens, 2 * cp_size).sum()), row_offsets)
    cut_per_document(piece_tokens, row_offsets, cp_size, table.chunks, table.offsets)
    return table


def pad_multiple(cp_size: int, pad_to: int) -> int:
    """Tokens that padded pieces are a multiple of."""
    return math.lcm(2 * cp_size, pad_to)


def padded_head_tail(
    piece_tokens: Int64, row_offsets: Int64, cp_size: int, cost: CPCost, options: CPOptions
) -> ChunkTable:
    """Pad every piece to a multiple of 2 x cp_size, then cut it in as many equal chunks.

    The layout of Transformer Engine's THD kernels, with which Megatron-LM trains packed sequences:
    rank r holds, piece by piece, chunks r and 2 cp_size - 1 - r with their padding. Pad tokens are
    chunks of piece -1; they are numbered over the micro-batch, all of the first piece's first.

    Raises:
        ValueError: a micro-batch that grows beyond `options.max_tokens`.
    """
    multiple = pad_multiple(cp_size, options.pad_to)
    padded = -(-piece_tokens // multiple) * multiple
    if options.max_tokens and len(padded):
        row_tokens = np.add.reduceat(padded, row_offsets[:-1])
        worst = int(np.argmax(row_tokens))
        if row_tokens[worst] > options.max_tokens:
            raise ValueError(
                f"{int(np.count_nonzero(row_tokens > options.max_tokens))} of {len(row_tokens)} "
                f"micro-batches exceed {options.max_tokens} tokens once their pieces are padded to "
                f"multiples of {multiple}; the largest has {int(row_tokens[worst])}. Pack with a "
                "larger max_tokens or smaller context_length and max_pieces, or use a strategy "
                "without padding"
            )
    table = ChunkTable.empty((2 * cp_size + 1) * len(piece_tokens), row_offsets)
    cut_padded(piece_tokens, padded, row_offsets, cp_size, table.chunks, table.offsets)
    return table
