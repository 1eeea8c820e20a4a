"""How a cluster runs the micro-batches of a step: sizes, stages, who waits for whom."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal, get_args

from packer.workload import SCALE

Coupling = Literal["gradient_sync", "lockstep"]
"""When data-parallel ranks wait for each other: at the end of a step, or also at every forward and
backward (FSDP that gathers parameters for each micro-batch, experts across data-parallel ranks)."""

MOST_STAGES = 4096
"""Bound on pp_size * virtual_stages; the deepest models have a few hundred layers."""
MOST_SHARE = 65_536
"""Bound on a stage's share, so that times stay far from the end of 64 bits."""
FINEST_BACKWARD = 64
"""Backward factors are rounded to fractions with at most this denominator."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """How a step's micro-batches run on a cluster.

    Stage s of the model takes share_s / sum(shares) of a micro-batch's workload for its forward;
    the first and the last one take `embedding_cost` and `head_cost` linear-token equivalents a
    token besides, since those parts see tokens and no attention.

    Args:
        dp_size: data-parallel ranks.
        pp_size: pipeline-parallel ranks.
        virtual_stages: model chunks a pipeline rank holds; 1 is 1F1B, more is interleaved 1F1B,
            in which pipeline rank r holds stages r, r + pp_size, r + 2 pp_size, ...
        coupling: when data-parallel ranks wait for each other.
        backward_factor: time of a backward over that of its forward: 2 as a rule, 3 where all
            activations are recomputed.
        stage_shares: relative work of the stages in model order, such as their layers,
            (pp_size * virtual_stages,); empty for equal ones.
        embedding_cost: what the embedding costs the first stage a token, as a share of the linear
            work of a token in all layers; in 1/256 at the finest.
        head_cost: what the output head costs the last stage, likewise: about its parameters over
            those of all layers.

    Raises:
        ValueError: sizes or times that no cluster has.

    Example:
        >>> Schedule(pp_size=2, virtual_stages=2, stage_shares=(7, 8, 8, 7)).num_stages
        4
    """

    dp_size: int = 1
    pp_size: int = 1
    virtual_stages: int = 1
    coupling: Coupling = "gradient_sync"
    backward_factor: float = 2.0
    stage_shares: tuple[int, ...] = ()
    embedding_cost: float = 0.0
    head_cost: float = 0.0

    def __post_init__(self) -> None:
        if min(self.dp_size, self.pp_size, self.virtual_stages) < 1:
            raise ValueError(
                f"dp_size {self.dp_size}, pp_size {self.pp_size} and virtual_stages "
                f"{self.virtual_stages} must be at least 1"
            )
        if self.num_stages > MOST_STAGES:
            raise ValueError(
                f"pp_size {self.pp_size} times virtual_stages {self.virtual_stages} is "
                f"{self.num_stages} stages; at most {MOST_STAGES} are simulated"
            )
        if self.virtual_stages > 1 and self.pp_size == 1:
            raise ValueError(
                f"virtual_stages {self.virtual_stages} with pp_size 1: one pipeline rank has "
                "nothing to interleave; set virtual_stages to 1 or pp_size to 2 or more"
            )
        if self.coupling not in get_args(Coupling):
            raise ValueError(
                f"coupling {self.coupling!r} is not known; use one of {list(get_args(Coupling))}"
            )
        self._check_times()

    def _check_times(self) -> None:
        shares = self.stage_shares
        if shares and len(shares) != self.num_stages:
            raise ValueError(
                f"{len(shares)} stage_shares for {self.num_stages} stages (pp_size {self.pp_size} "
                f"times virtual_stages {self.virtual_stages}); give one for each stage, or none"
            )
        if shares and not (min(shares) >= 0 and 0 < max(shares) <= MOST_SHARE):
            raise ValueError(
                f"stage_shares {list(shares)} must be integers of 0 to {MOST_SHARE}, such as the "
                "layers of each stage, and not all 0"
            )
        if not 1 / FINEST_BACKWARD <= self.backward_factor <= FINEST_BACKWARD:
            raise ValueError(
                f"backward_factor {self.backward_factor} must be 1/{FINEST_BACKWARD} to "
                f"{FINEST_BACKWARD}; it is 2 as a rule, 3 with full recomputation"
            )
        for name, cost in (("embedding_cost", self.embedding_cost), ("head_cost", self.head_cost)):
            if not 0 <= cost <= SCALE:
                raise ValueError(
                    f"{name} {cost} must be 0 to {SCALE}, as a share of a token's linear work"
                )

    @property
    def num_stages(self) -> int:
        """Parts that the model is cut into."""
        return self.pp_size * self.virtual_stages

    @property
    def shares(self) -> tuple[int, ...]:
        """Relative work of each stage, (num_stages,), smallest integers."""
        given = self.stage_shares or (1,) * self.num_stages
        divisor = math.gcd(*given)
        return tuple(share // divisor for share in given)

    @property
    def token_costs(self) -> tuple[int, int]:
        """Workload that a token costs the first and the last stage besides."""
        return round(self.embedding_cost * SCALE), round(self.head_cost * SCALE)

    @property
    def pass_times(self) -> tuple[int, int]:
        """Relative time of a forward and of a backward, smallest integers."""
        factor = Fraction(self.backward_factor).limit_denominator(FINEST_BACKWARD)
        return factor.denominator, factor.numerator

    def num_per_rank(self, num_micro_batches: int) -> int:
        """Micro-batches of a step that each data-parallel rank runs.

        Interleaved 1F1B takes them in groups of pp_size. Megatron-LM, from which the order is,
        refuses a last group that is smaller (core/pipeline_parallel/schedules.py), and so do we.

        Raises:
            ValueError: this schedule cannot run so many micro-batches.
        """
        if num_micro_batches < 1 or num_micro_batches % self.dp_size:
            raise ValueError(
                f"dp_size {self.dp_size} does not divide the {num_micro_batches} micro-batches of "
                "a step; give a divisor"
            )
        num = num_micro_batches // self.dp_size
        if self.virtual_stages > 1 and num % self.pp_size:
            raise ValueError(
                f"interleaved 1F1B runs micro-batches in groups of pp_size {self.pp_size}, and "
                f"{num_micro_batches} micro-batches over dp_size {self.dp_size} are {num} a rank; "
                "make that a multiple of pp_size, or set virtual_stages to 1"
            )
        return num


ONE_RANK = Schedule()
"""Neither data nor pipeline parallel."""
