"""Kernels of the head-tail strategies: over the packed sequence, and over every piece.

Chunks are made in their final order, rank by rank, so nothing is sorted.
"""

from __future__ import annotations

import numpy as np

from packer.context_parallel.kernels import append_chunk
from packer.jit import kernel
from packer.plan import Int64


@kernel
def piece_holding(begin: Int64, first: int, stop: int, token: int) -> int:
    """The last piece in [first, stop) that begins at or before `token`, by bisection."""
    while stop - first > 1:
        middle = (first + stop) // 2
        if begin[middle] <= token:
            first = middle
        else:
            stop = middle
    return first


@kernel
def cut_per_sequence(
    piece_begin: Int64, row_offsets: Int64, cp_size: int, chunks: np.ndarray, chunk_offsets: Int64
) -> None:
    """Head-tail over the packed sequence.

    Args:
        piece_begin: tokens before each piece over all rows, and the total, (pieces + 1,).
        row_offsets: (rows + 1,).
        cp_size: ranks.
        chunks: written, capacity at least pieces + rows x (2 x cp_size - 1).
        chunk_offsets: written, (rows + 1,).
    """
    count = 0
    chunk_offsets[0] = 0
    for row in range(len(row_offsets) - 1):
        first_piece, stop_piece = row_offsets[row], row_offsets[row + 1]
        head = int(piece_begin[first_piece])  # where the next head part begins
        tail = int(piece_begin[stop_piece])  # where the next tail part ends
        share, more = (tail - head) // cp_size, (tail - head) % cp_size
        first_chunk = count
        for rank in range(cp_size):
            tokens = share + 1 if rank < more else share
            half = tokens - tokens // 2
            rest = tokens - half
            for at, end in ((head, head + half), (tail - rest, tail)):
                piece = piece_holding(piece_begin, first_piece, stop_piece, at)
                while at < end:
                    before = piece_begin[piece]
                    stop = min(end, piece_begin[piece + 1])
                    index = piece - first_piece
                    count = append_chunk(
                        chunks, first_chunk, count, rank, index, at - before, stop - before
                    )
                    at = stop
                    piece += 1
            head += half
            tail -= rest
        chunk_offsets[row + 1] = count


@kernel
def extra_before(slot: int, cursor: int, extra: int, num_slots: int) -> int:
    """Extra tokens in slots before `slot`, of `extra` < num_slots dealt on from `cursor`."""
    straight = min(slot, cursor + extra) - cursor
    wrapped = min(slot, cursor + extra - num_slots)
    return max(0, straight) + max(0, wrapped)


@kernel
def cut_per_document(
    piece_tokens: Int64, row_offsets: Int64, cp_size: int, chunks: np.ndarray, chunk_offsets: Int64
) -> None:
    """Head-tail over every piece.

    Args:
        piece_tokens: (pieces,).
        row_offsets: (rows + 1,).
        cp_size: ranks.
        chunks: written, capacity at least the sum of min(tokens, 2 x cp_size) over pieces.
        chunk_offsets: written, (rows + 1,).
    """
    num_slots = 2 * cp_size
    count = 0
    chunk_offsets[0] = 0
    for row in range(len(row_offsets) - 1):
        first_chunk = count
        for rank in range(cp_size):
            cursor = 0
            for piece in range(row_offsets[row], row_offsets[row + 1]):
                share, extra = piece_tokens[piece] // num_slots, piece_tokens[piece] % num_slots
                for slot in (rank, num_slots - 1 - rank):
                    start = slot * share + extra_before(slot, cursor, extra, num_slots)
                    stop = (slot + 1) * share + extra_before(slot + 1, cursor, extra, num_slots)
                    count = append_chunk(
                        chunks, first_chunk, count, rank, piece - row_offsets[row], start, stop
                    )
                cursor = (cursor + extra) % num_slots
        chunk_offsets[row + 1] = count


@kernel
def cut_padded(
    piece_tokens: Int64,
    padded: Int64,
    row_offsets: Int64,
    cp_size: int,
    chunks: np.ndarray,
    chunk_offsets: Int64,
) -> None:
    """Head-tail over every padded piece, its pad tokens as chunks of piece -1.

    Args:
        piece_tokens: (pieces,).
        padded: the same with padding, multiples of 2 x cp_size, (pieces,).
        row_offsets: (rows + 1,).
        cp_size: ranks.
        chunks: written, capacity at least (2 x cp_size + 1) x pieces.
        chunk_offsets: written, (rows + 1,).
    """
    count = 0
    chunk_offsets[0] = 0
    for row in range(len(row_offsets) - 1):
        for rank in range(cp_size):
            pads = 0  # of the row's pieces before this one
            for piece in range(row_offsets[row], row_offsets[row + 1]):
                tokens, size = piece_tokens[piece], padded[piece] // (2 * cp_size)
                index, first = piece - row_offsets[row], count
                for slot in (rank, 2 * cp_size - 1 - rank):
                    start, stop = min(slot * size, tokens), min((slot + 1) * size, tokens)
                    count = append_chunk(chunks, first, count, rank, index, start, stop)
                first = count
                for slot in (rank, 2 * cp_size - 1 - rank):
                    start, stop = max(slot * size, tokens), max((slot + 1) * size, tokens)
                    before = pads - tokens
                    count = append_chunk(
                        chunks, first, count, rank, -1, before + start, before + stop
                    )
                pads += padded[piece] - tokens
        chunk_offsets[row + 1] = count
