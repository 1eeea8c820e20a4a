"""Micro-batches and rows of CP plans, written by hand."""

from collections.abc import Iterable, Sequence

import numpy as np

from pipeline.shard.micro_batch import Chunks, MicroBatch

Chunk = tuple[int, int, int, int]
"""cp_rank, piece, start, stop."""


def micro_batch(
    tokens: Sequence[int], cu_seqlens: Sequence[int], last_labels: Sequence[int]
) -> MicroBatch:
    pieces = len(last_labels)
    return MicroBatch(
        step=0,
        slot=0,
        tokens=np.array(tokens, np.uint16),
        cu_seqlens=np.array(cu_seqlens, np.int32),
        source=np.zeros(pieces, np.int32),
        epoch=np.zeros(pieces, np.int32),
        doc_id=np.arange(pieces, dtype=np.int64),
        doc_start=np.zeros(pieces, np.int64),
        last_labels=np.array(last_labels, np.int64),
        num_targets=len(tokens) - last_labels.count(-100),
        workload=1,
    )


def boundaries_of(lengths: Iterable[int]) -> list[int]:
    """Pieces of these lengths back to back: first 0."""
    cu_seqlens = [0]
    for length in lengths:
        cu_seqlens.append(cu_seqlens[-1] + length)
    return cu_seqlens


def numbered(lengths: Sequence[int]) -> MicroBatch:
    """Pieces of these lengths; tokens are 1, 2, ..., every piece goes on in its document."""
    cu_seqlens = boundaries_of(lengths)
    return micro_batch(range(1, cu_seqlens[-1] + 1), cu_seqlens, [9_000] * len(lengths))


def chunks(*rows: Chunk) -> Chunks:
    """From (cp_rank, piece, start, stop)."""
    columns = np.array(rows, np.int32).reshape(-1, 4).T
    return Chunks(
        cp_rank=columns[0],
        piece=columns[1],
        start=columns[2],
        stop=columns[3],
        strategy="by hand",
        predicted=np.array([1, 1]),
    )


def chunks_of_owners(lengths: Sequence[int], owners: Sequence[int]) -> Chunks:
    """The plan that gives token i of the micro-batch to rank `owners[i]`."""
    rows: list[list[int]] = []
    i = 0
    for piece, length in enumerate(lengths):
        for place in range(length):
            if place and owners[i] == owners[i - 1]:
                rows[-1][3] += 1
            else:
                rows.append([owners[i], piece, place, place + 1])
            i += 1
    return chunks(*sorted((rank, piece, start, stop) for rank, piece, start, stop in rows))
