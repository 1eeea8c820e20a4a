"""How a cluster runs the micro-batches of a step: sizes, interleaving, who waits for whom."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

Coupling = Literal["gradient_sync", "lockstep"]
"""When data-parallel ranks wait for each other: at the end of a step, or also at every forward and
backward (FSDP that gathers parameters for each micro-batch, experts across data-parallel ranks)."""

MOST_STAGES = 4096
"""Bound on pp_size * virtual_stages; the deepest models have a few hundred layers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """How a step's micro-batches run on a cluster.

    Args:
        dp_size: data-parallel ranks.
        pp_size: pipeline-parallel ranks.
        virtual_stages: model chunks a pipeline rank holds; 1 is 1F1B, more is interleaved 1F1B.
        coupling: when data-parallel ranks wait for each other.

    Raises:
        ValueError: sizes that no cluster has.
    """

    dp_size: int = 1
    pp_size: int = 1
    virtual_stages: int = 1
    coupling: Coupling = "gradient_sync"

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

    @property
    def num_stages(self) -> int:
        """Parts that the model is cut into."""
        return self.pp_size * self.virtual_stages

    def num_per_rank(self, num_micro_batches: int) -> int:
        """Micro-batches of a step that each data-parallel rank runs.

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
