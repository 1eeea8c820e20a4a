"""The bounds that packing policies keep, and what they are told to make small."""

from __future__ import annotations

from dataclasses import dataclass

from packer.schedule import Schedule

MOST_MOVES = 20_000
"""Bound on the effort of `lookahead`: some minutes a window; more moves find nothing more."""


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
