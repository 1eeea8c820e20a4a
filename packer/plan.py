"""What a plan is made of: pieces, and the steps that hold them.

Everything here is numbers. A piece is a contiguous part of a document, placed as one; a step is
`num_micro_batches` micro-batches; a slot is a micro-batch's place in its step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Self

import numpy as np

Int64 = np.ndarray
"""A one-dimensional int64 array; the docstring of the field or argument gives its length."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Pieces:
    """Pieces in the order in which the caller wants them, all arrays int64 of shape (pieces,).

    `position` is the number of stream tokens before a piece; sorted by it, the pieces of a stream
    lie end to end. `doc_tokens` is the length of the whole document, or of what is left of one that
    is truncated: the last token of a piece that ends there or later has no successor.
    """

    source: Int64
    epoch: Int64
    doc_id: Int64
    doc_start: Int64
    doc_stop: Int64
    doc_tokens: Int64
    position: Int64

    def __post_init__(self) -> None:
        for field in fields(self):
            array = getattr(self, field.name)
            if array.dtype != np.int64 or array.shape != self.doc_id.shape or array.ndim != 1:
                raise ValueError(
                    f"Pieces.{field.name} is {array.dtype}{list(array.shape)}; every field must be "
                    f"int64 of shape {list(self.doc_id.shape)}"
                )

    @classmethod
    def from_lengths(cls, lengths: np.ndarray) -> Self:
        """One piece a document of one source, in order: what simulations and tests pack.

        Args:
            lengths: tokens of each document, any integer type, shape (documents,).
        """
        tokens = np.ascontiguousarray(lengths, dtype=np.int64)
        zeros = np.zeros_like(tokens)
        return cls(
            source=zeros,
            epoch=zeros,
            doc_id=np.arange(len(tokens), dtype=np.int64),
            doc_start=zeros,
            doc_stop=tokens,
            doc_tokens=tokens,
            position=np.cumsum(tokens) - tokens,
        )

    @classmethod
    def empty(cls) -> Self:
        return cls.from_lengths(np.empty(0, np.int64))

    @classmethod
    def concatenate(cls, parts: Sequence[Pieces]) -> Self:
        if not parts:
            return cls.empty()
        return cls(
            **{
                field.name: np.concatenate([getattr(part, field.name) for part in parts])
                for field in fields(cls)
            }
        )

    def take(self, index: np.ndarray | slice) -> Self:
        """The pieces at `index`, an integer array or a slice."""
        return type(self)(
            **{field.name: getattr(self, field.name)[index] for field in fields(self)}
        )

    @property
    def tokens(self) -> Int64:
        """Tokens of each piece, shape (pieces,)."""
        return self.doc_stop - self.doc_start

    @property
    def num_targets(self) -> Int64:
        """Tokens of each piece that have a label: all but a document's very last, (pieces,)."""
        return self.tokens - (self.doc_stop >= self.doc_tokens)

    def __len__(self) -> int:
        return len(self.doc_id)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Steps:
    """Whole steps: which piece runs where.

    Micro-batches are numbered row = (step - first_step) * num_micro_batches + slot; the pieces of
    row j are `pieces[row_offsets[j] : row_offsets[j + 1]]`, ascending by position. No row is empty.
    Inside a step workloads do not increase with the slot; ties stand in order of first position.
    """

    first_step: int
    num_micro_batches: int
    pieces: Pieces
    row_offsets: Int64
    """(rows + 1,), first 0, strictly increasing, last = number of pieces."""
    row_workload: Int64
    """(rows,), in 1/256 of a linear-token equivalent."""

    def __post_init__(self) -> None:
        if len(self.row_offsets) != len(self.row_workload) + 1:
            raise ValueError(
                f"{len(self.row_offsets)} row_offsets for {len(self.row_workload)} micro-batches; "
                "there must be one more"
            )
        if len(self.row_workload) % self.num_micro_batches:
            raise ValueError(
                f"{len(self.row_workload)} micro-batches do not make whole steps of "
                f"{self.num_micro_batches}"
            )
        if self.row_offsets[0] != 0 or self.row_offsets[-1] != len(self.pieces):
            raise ValueError("row_offsets must run from 0 to the number of pieces")
        if np.any(np.diff(self.row_offsets) <= 0):
            raise ValueError("a micro-batch without pieces: row_offsets must strictly increase")

    @property
    def num_rows(self) -> int:
        return len(self.row_workload)

    @property
    def num_steps(self) -> int:
        return self.num_rows // self.num_micro_batches

    @property
    def row_tokens(self) -> Int64:
        """Tokens of each micro-batch, shape (rows,)."""
        return np.add.reduceat(self.pieces.tokens, self.row_offsets[:-1])

    @property
    def row_targets(self) -> Int64:
        """Tokens of each micro-batch that have a label, shape (rows,)."""
        return np.add.reduceat(self.pieces.num_targets, self.row_offsets[:-1])

    @property
    def piece_step(self) -> Int64:
        """The step of each piece, shape (pieces,)."""
        row = np.repeat(np.arange(self.num_rows), np.diff(self.row_offsets))
        return self.first_step + row // self.num_micro_batches

    def displacement(self, intake_tokens: int) -> Int64:
        """Steps between where each piece runs and where it arrived, (pieces,).

        Args:
            intake_tokens: A, stream tokens that a step takes in; steps are counted from the
                segment's first.
        """
        return np.abs(self.piece_step - self.pieces.position // intake_tokens)

    def take_steps(self, start: int, stop: int) -> Steps:
        """Steps `start` to `stop` of these, counted from 0."""
        rows = slice(start * self.num_micro_batches, stop * self.num_micro_batches)
        offsets = self.row_offsets[rows.start : rows.stop + 1]
        return Steps(
            first_step=self.first_step + start,
            num_micro_batches=self.num_micro_batches,
            pieces=self.pieces.take(slice(int(offsets[0]), int(offsets[-1]))),
            row_offsets=offsets - offsets[0],
            row_workload=self.row_workload[rows],
        )

    @classmethod
    def concatenate(cls, parts: Sequence[Steps]) -> Steps:
        """Consecutive steps as one; at least one part."""
        shifts = np.cumsum([0] + [len(part.pieces) for part in parts])
        offsets = [
            part.row_offsets[:-1] + shift for part, shift in zip(parts, shifts, strict=False)
        ]
        return Steps(
            first_step=parts[0].first_step,
            num_micro_batches=parts[0].num_micro_batches,
            pieces=Pieces.concatenate([part.pieces for part in parts]),
            row_offsets=np.concatenate([*offsets, shifts[-1:]]),
            row_workload=np.concatenate([part.row_workload for part in parts]),
        )
