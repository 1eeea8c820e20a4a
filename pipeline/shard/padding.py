"""Micro-batches padded for kernels that cut every piece in equal parts.

Transformer Engine's attention over packed sequences (THD), which Megatron uses, divides each piece
in 2 x cp_size chunks of one length; rank r holds chunks r and 2 cp_size - 1 - r, piece by piece. So
every piece is padded, at its end, to a multiple of `pad_multiple`, itself one of 2 x cp_size. A
plan made for them (strategy `padded_head_tail`) has its pads as chunks: docs/FORMAT.md, section 4.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pipeline.shard.micro_batch import Chunks, PackedTokens
from pipeline.shard.schema import NO_LABEL
from pipeline.shard.spans import boundaries, spans


@dataclass(frozen=True, kw_only=True, eq=False)
class PaddedMicroBatch:
    """A micro-batch as a context-parallel rank of Megatron or Transformer Engine sees it.

    `tokens`, `labels`, `position_ids` and `padded_index` have one entry a local token or pad, as
    many on every rank; all int64. A pad has the label -100 and the position that a token would have
    there. The boundaries are those of the whole micro-batch, as the kernels want them.
    """

    step: int
    slot: int
    cp_rank: int
    cp_size: int
    tokens: np.ndarray
    labels: np.ndarray
    position_ids: np.ndarray
    padded_index: np.ndarray
    """Places in the whole padded micro-batch: what the kernels' partition gives the rank."""
    cu_seqlens: np.ndarray
    """int32, (pieces + 1,): boundaries of the pieces, pads not counted."""
    cu_seqlens_padded: np.ndarray
    """int32, (pieces + 1,): boundaries of the pieces with their pads."""
    max_seqlen: int
    """Tokens and pads of the longest piece."""
    pad_multiple: int

    @property
    def num_targets(self) -> int:
        """Local tokens that have a label."""
        return int(np.count_nonzero(self.labels != NO_LABEL))


def padded_view(
    micro_batch: PackedTokens,
    cp_row: Chunks | None,
    cp_rank: int,
    cp_size: int,
    *,
    pad_multiple: int,
    pad_token: int = 0,
) -> PaddedMicroBatch:
    """The part of a padded micro-batch that belongs to a context-parallel rank.

    Args:
        micro_batch: the whole of it.
        cp_row: its row of the CP plan for `cp_size`; None where `cp_size` is 1, which has no pads.
        cp_rank: 0 <= cp_rank < cp_size.
        cp_size: number of CP ranks.
        pad_multiple: what the plan says that pieces are padded to.
        pad_token: id that pads get.

    Raises:
        ValueError: the rank does not exist, the row is missing, or the plan's chunks are not those
            of the padded layout.
    """
    if not 0 <= cp_rank < cp_size:
        raise ValueError(f"cp_rank {cp_rank} is not in 0..{cp_size - 1}")
    if cp_size > 1 and (pad_multiple < 1 or pad_multiple % (2 * cp_size)):
        raise ValueError(
            f"pad_multiple is {pad_multiple}; kernels that cut pieces in equal parts need a "
            f"multiple of 2 x cp_size = {2 * cp_size}: plan with strategy padded_head_tail"
        )
    length = np.diff(micro_batch.cu_seqlens).astype(np.int64)
    padded = length if cp_size == 1 else -(-length // pad_multiple) * pad_multiple
    begin = np.cumsum(padded) - padded
    total = int(padded.sum())
    index = _partition(begin, padded, cp_rank, cp_size) if cp_size > 1 else np.arange(total)
    if cp_size > 1:
        if cp_row is None:
            raise ValueError(f"cp_size is {cp_size}, but no CP plan was given; only 1 needs none")
        _check_layout(cp_row, index, length, begin, padded, cp_rank)
    tokens = np.full(total, pad_token, np.int64)
    labels = np.full(total, NO_LABEL, np.int64)
    place = spans(begin, length)
    tokens[place], labels[place] = micro_batch.tokens, micro_batch.labels
    return PaddedMicroBatch(
        step=micro_batch.step,
        slot=micro_batch.slot,
        cp_rank=cp_rank,
        cp_size=cp_size,
        tokens=tokens[index],
        labels=labels[index],
        position_ids=index - np.repeat(begin, padded // cp_size),
        padded_index=index,
        cu_seqlens=boundaries(length),
        cu_seqlens_padded=boundaries(padded),
        max_seqlen=int(padded.max()),
        pad_multiple=pad_multiple,
    )


def _partition(begin: np.ndarray, padded: np.ndarray, cp_rank: int, cp_size: int) -> np.ndarray:
    """The kernels' rule: of each piece's 2 cp_size equal chunks numbers r and 2 cp_size - 1 - r."""
    chunk = padded // (2 * cp_size)
    first, second = begin + cp_rank * chunk, begin + (2 * cp_size - 1 - cp_rank) * chunk
    return spans(np.stack([first, second], axis=1).ravel(), np.repeat(chunk, 2))


def _check_layout(
    cp_row: Chunks,
    index: np.ndarray,
    length: np.ndarray,
    begin: np.ndarray,
    padded: np.ndarray,
    cp_rank: int,
) -> None:
    """The plan's chunks and pads of the rank are, in order, the places that the rule gives."""
    size = (cp_row.stop - cp_row.start).astype(np.int64)
    planned, needed = int(size[cp_row.piece < 0].sum()), int((padded - length).sum())
    if planned != needed:
        raise ValueError(
            f"the CP plan (strategy {cp_row.strategy}) has {planned} pads, its pad_multiple needs "
            f"{needed}; give the multiple that it was made with, or plan with strategy "
            "padded_head_tail"
        )
    mine = cp_row.cp_rank == cp_rank
    piece, start = cp_row.piece[mine].astype(np.int64), cp_row.start[mine].astype(np.int64)
    is_pad = piece < 0
    piece[is_pad], start[is_pad] = place_pads(start[is_pad], length, padded)
    found = spans(begin[piece] + start, size[mine])
    if not np.array_equal(found, index):
        raise ValueError(
            f"the CP plan (strategy {cp_row.strategy}) does not give CP rank {cp_rank} the equal "
            "head and tail chunks of each padded piece; plan with strategy padded_head_tail"
        )


def place_pads(
    pad: np.ndarray, length: np.ndarray, padded: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The piece of each pad, and its place in that piece; int64, each of the shape of `pad`.

    Args:
        pad: numbers of pads; all pads of piece 0 come first, then those of piece 1.
        length: tokens of each piece, (pieces,).
        padded: tokens and pads of each piece, (pieces,).
    """
    ends = np.cumsum(padded - length)
    piece = np.minimum(np.searchsorted(ends, pad, side="right"), len(ends) - 1)
    return piece, pad - ends[piece] + padded[piece]
