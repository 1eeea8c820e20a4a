"""What a plan is made of: pieces, the steps that hold them, and where a slot runs.

Everything here is numbers. A piece is a contiguous part of a document, placed as one; a step is
`num_micro_batches` micro-batches; a slot is a micro-batch's place in its step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Self

import numpy as np

from packer.schedule import Schedule

MOST_MOVES = 20_000
"""Bound on the effort of `lookahead`: some minutes a window; more moves find nothing more."""
Int64 = np.ndarray
"""A one-dimensional int64 array; the docstring of the field or argument gives its length."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Pieces:
    """Pieces in the order in which the caller wants them, all arrays int64 of shape (pieces,).

    `position` is the number of stream tokens before a piece; sorted by it, the pieces of a stream
    lie end to end. `doc_tokens` is the length of the whole document, or of what is left of one that
    is truncated, so that a piece knows whether its last token has a successor.
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
        return self.tokens - (self.doc_stop == self.doc_tokens)

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


@dataclass(frozen=True, slots=True, kw_only=True)
class PackingConfig:
    """The bounds a policy packs under.

    Args:
        num_micro_batches: N, micro-batches of a step.
        context_length: S, nominal tokens of a micro-batch and the longest piece.
        max_tokens: S_max >= S, hard bound of a micro-batch.
        intake_tokens: A, stream tokens a step takes in; 0 stands for N * S.
        max_pieces: hard bound on the pieces of a micro-batch; 0 for none.
        thresholds: outlier thresholds of `wlb`, ascending, in tokens; queue i holds pieces of
            thresholds[i] <= tokens < thresholds[i + 1], the last one is open.
        max_displacement: no piece runs further than this many steps from its arrival.
        mean_displacement: budget of `lookahead`, token-weighted, in steps.
        window_steps: steps that `lookahead` plans as a whole.
        moves_per_piece: effort of `lookahead`: moves tried for each long piece of a window, or
            group of them; 0 for 800.
        schedule: whose time `lookahead` minimises; None for the heaviest micro-batch's work.
        token_band: share of A that a step of `lookahead` may hold more or less than A tokens; 0
            for no band.
        source_band: how far a source's share of a step of `lookahead` may be from its share of the
            window, in shares of A; 0 for no band.
        global_batches: steps that `fixed_greedy`, `fixed_solver` and the packers by length deal
            out together.
        longest_first: `fixed_greedy` places short pieces by length too, not in order of the stream.
        solver_seconds: time that `fixed_solver` has for a window.
        solver_gap: relative gap at which `fixed_solver` stops.
    """

    num_micro_batches: int
    context_length: int
    max_tokens: int
    intake_tokens: int = 0
    max_pieces: int = 0
    thresholds: tuple[int, ...] = ()
    max_displacement: int = 16
    mean_displacement: float = 0.5
    window_steps: int = 64
    moves_per_piece: int = 0
    schedule: Schedule | None = None
    token_band: float = 0.0
    source_band: float = 0.0
    global_batches: int = 1
    longest_first: bool = False
    solver_seconds: float = 1.0
    solver_gap: float = 1e-3

    def __post_init__(self) -> None:
        if self.num_micro_batches < 1 or self.context_length < 1:
            raise ValueError(
                f"num_micro_batches is {self.num_micro_batches} and context_length "
                f"{self.context_length}; both must be at least 1"
            )
        if self.max_tokens < self.context_length:
            raise ValueError(
                f"max_tokens is {self.max_tokens}, less than context_length {self.context_length}: "
                "a piece of full length would fit nowhere; raise max_tokens"
            )
        if self.intake_tokens < 0 or self.max_pieces < 0 or self.max_displacement < 1:
            raise ValueError(
                f"intake_tokens {self.intake_tokens} and max_pieces {self.max_pieces} must not be "
                f"negative, max_displacement {self.max_displacement} must be at least 1"
            )
        if (
            list(self.thresholds) != sorted(set(self.thresholds))
            or min(self.thresholds, default=1) < 1
        ):
            raise ValueError(f"thresholds {list(self.thresholds)} must be positive and ascending")
        if not self.mean_displacement > 0 or self.window_steps < 1:
            raise ValueError(
                f"mean_displacement {self.mean_displacement} and window_steps {self.window_steps} "
                "must be positive"
            )
        if not 0 <= self.moves_per_piece <= MOST_MOVES:
            raise ValueError(
                f"moves_per_piece is {self.moves_per_piece}; it must be 0 (for 800) to {MOST_MOVES}"
            )
        if not (0 <= self.token_band < 1 and 0 <= self.source_band < 1):
            raise ValueError(
                f"token_band {self.token_band} and source_band {self.source_band} are shares of a "
                "step's tokens, 0 (no band) to less than 1"
            )
        if self.schedule is not None:
            self.schedule.num_per_rank(self.num_micro_batches)
        if not 1 <= self.global_batches <= (self.max_displacement + 1) // 2:
            raise ValueError(
                f"global_batches is {self.global_batches} and max_displacement "
                f"{self.max_displacement}; a piece left by one window may run at the end of the "
                "next, so it must be 1 to (max_displacement + 1) / 2: raise max_displacement to "
                f"{2 * self.global_batches - 1}"
            )
        if not self.solver_seconds > 0 or not 0 <= self.solver_gap < 1:
            raise ValueError(
                f"solver_seconds {self.solver_seconds} must be positive and solver_gap "
                f"{self.solver_gap} in 0..1"
            )
        if self.intake_tokens == 0:
            object.__setattr__(self, "intake_tokens", self.num_micro_batches * self.context_length)


def slot_of(*, micro_batch: int, dp_rank: int, dp_size: int) -> int:
    """The slot that a data-parallel rank runs as its given micro-batch.

    Ranks are dealt the slots back and forth, so that at every `dp_size` they run like with like
    and their sums are even.

    Example:
        >>> [slot_of(micro_batch=i, dp_rank=0, dp_size=4) for i in range(4)]
        [0, 7, 8, 15]
    """
    if not 0 <= dp_rank < dp_size:
        raise ValueError(f"dp_rank {dp_rank} is not in 0..{dp_size - 1}")
    place = dp_rank if micro_batch % 2 == 0 else dp_size - 1 - dp_rank
    return micro_batch * dp_size + place
