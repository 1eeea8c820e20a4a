"""Micro-batches as a context-parallel rank runs them, made several at a time.

A call of NumPy costs as much as a thousand tokens, so what micro-batches need is computed for some
of them together, in one block of memory, and each is handed its part.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np

from pipeline.shard.blocks import Blocks
from pipeline.shard.micro_batch import Chunks, PackedTokens, RankMicroBatch
from pipeline.shard.rank_chunks import RankChunks, chunks_of_rank, token_chunks, whole_pieces
from pipeline.shard.spans import as_boundaries, boundaries, fill_spans, take_spans

_BLOCKS = Blocks()

Fill: TypeAlias = Callable[[RankChunks, np.ndarray], np.ndarray]
"""Writes the chunks' tokens, back to back; gives the label of each one's last token, (chunks,)."""


def rank_view(
    micro_batch: PackedTokens, cp_row: Chunks | None, cp_rank: int, cp_size: int
) -> RankMicroBatch:
    """The part of a micro-batch that belongs to a context-parallel rank, in the plan's order.

    Pads of a plan that has them are left out; `padding.padded_view` keeps them.

    Args:
        micro_batch: the whole of it.
        cp_row: its row of the CP plan for `cp_size`; None where `cp_size` is 1, which needs none.
        cp_rank: 0 <= cp_rank < cp_size; a rank without chunks gets empty arrays.
        cp_size: number of CP ranks.

    Raises:
        ValueError: the rank does not exist, or the row is missing.
    """
    pieces = np.array([len(micro_batch.last_labels)])
    if cp_size == 1 and cp_rank == 0:
        chunks = whole_pieces(micro_batch.cu_seqlens, pieces)
    else:
        table = token_chunks(micro_batch.cu_seqlens, cp_row, cp_rank, cp_size)
        count = np.array([len(table.piece)])
        chunks = chunks_of_rank(micro_batch.cu_seqlens, pieces, table, count, cp_rank)
    places = [(micro_batch.step, micro_batch.slot, micro_batch.workload)]

    def fill(chunks: RankChunks, out: np.ndarray) -> np.ndarray:
        return fill_packed(chunks, out, [micro_batch.tokens], micro_batch.last_labels)

    return rank_views(places, chunks, fill, cp_rank=cp_rank, cp_size=cp_size)[0]


def rank_views(
    places: Sequence[tuple[int, int, int]],
    chunks: RankChunks,
    fill: Fill,
    *,
    cp_rank: int,
    cp_size: int,
) -> list[RankMicroBatch]:
    """Some micro-batches of a rank; who holds one holds the memory of all.

    Args:
        places: step, slot and workload of each.
        chunks: the rank's, of these micro-batches.
        fill: where tokens come from.
        cp_rank: 0 <= cp_rank < cp_size.
        cp_size: number of CP ranks.
    """
    ends = chunks.length.cumsum()
    total = int(ends[-1]) if len(ends) else 0
    tokens, labels, position_ids = _BLOCKS.take((3, total), "int64")
    last_labels = fill(chunks, tokens)
    labels[:-1] = tokens[1:]
    labels[ends - 1] = last_labels
    fill_spans(position_ids, chunks.start, chunks.length)
    cu_seqlens_q, longest_q = _boundaries(chunks.length, chunks.counts)
    if chunks.whole:
        query_starts = chunks.piece_start
        cu_seqlens_k, longest_k = cu_seqlens_q.copy(), longest_q
    else:
        query_starts = chunks.piece_start + chunks.start
        cu_seqlens_k, longest_k = _boundaries(chunks.start + chunks.length, chunks.counts)
    views: list[RankMicroBatch] = []
    chunk = token = 0
    for index, count in enumerate(chunks.counts.tolist()):
        step, slot, workload = places[index]
        mine, bounds = slice(chunk, chunk + count), slice(chunk + index, chunk + index + count + 1)
        own = slice(token, token + int(cu_seqlens_q[chunk + index + count]))
        view = RankMicroBatch(
            step=step,
            slot=slot,
            cp_rank=cp_rank,
            cp_size=cp_size,
            tokens=tokens[own],
            labels=labels[own],
            position_ids=position_ids[own],
            query_starts=query_starts[mine],
            key_starts=chunks.piece_start[mine],
            cu_seqlens_q=cu_seqlens_q[bounds],
            cu_seqlens_k=cu_seqlens_k[bounds],
            max_seqlen_q=longest_q[index],
            max_seqlen_k=longest_k[index],
            workload=workload,
        )
        views.append(view)
        chunk, token = chunk + count, own.stop
    return views


def fill_packed(
    chunks: RankChunks, out: np.ndarray, tokens: Sequence[np.ndarray], last_labels: np.ndarray
) -> np.ndarray:
    """A `Fill` from whole micro-batches.

    Args:
        chunks: of these micro-batches.
        out: int64, (tokens of the chunks,).
        tokens: of each micro-batch, of any integer type.
        last_labels: of all their pieces, (pieces,).
    """
    if chunks.whole:
        np.concatenate(tokens, out=out, casting="same_kind")
        return last_labels
    length, begin = chunks.length, chunks.piece_start + chunks.start
    goes_on = chunks.start + length < chunks.piece_length
    labels = last_labels[chunks.piece]
    chunk = token = 0
    for values, count in zip(tokens, chunks.counts.tolist(), strict=True):
        mine = slice(chunk, chunk + count)
        stop = token + int(length[mine].sum())
        take_spans(values, begin[mine], length[mine], out[token:stop])
        inside = chunk + np.flatnonzero(goes_on[mine])
        labels[inside] = values[begin[inside] + length[inside]]
        chunk, token = chunk + count, stop
    return labels


def _boundaries(length: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, list[int]]:
    """Boundaries of spans laid end to end, anew from 0 for each micro-batch; its longest span.

    Args:
        length: of the spans of all micro-batches, int64, (spans,).
        counts: spans of each, int64, (micro-batches,).

    Returns:
        int32, (spans + micro-batches,); integers, 0 where a micro-batch has no span.
    """
    if len(counts) == 1:
        return boundaries(length), [int(length.max(initial=0))]
    first = np.cumsum(counts + 1) - (counts + 1)
    steps = np.zeros(len(length) + len(counts), np.int64)
    steps[np.arange(len(length)) + np.repeat(np.arange(1, len(counts) + 1), counts)] = length
    ends = np.cumsum(steps)
    cu_seqlens = as_boundaries(ends - np.repeat(ends[first], counts + 1))
    return cu_seqlens, np.maximum.reduceat(steps, first).tolist()
