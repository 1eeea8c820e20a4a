"""How sources become a stream, and the stream steps."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from packer.packing.config import MOST_MOVES
from pipeline.settings.table import MANY, Table


class MixtureConfig(Table):
    """How sources become one stream.

    `at_source_end` defaults to "stop" where weights are given, so that the mixture holds to the
    end, and to "drop" where they are not, so that every document is used.
    """

    seed: int = Field(default=0, ge=0, lt=2**63)
    target_tokens: int | None = Field(default=None, ge=1, lt=2**62)
    at_source_end: Literal["stop", "drop"] | None = None


class PackingSettings(Table):
    """Bounds of a micro-batch and a step, and the policy that fills them."""

    policy: Literal["concat", "reorder", "wlb", "lookahead", "fixed_greedy"] = "lookahead"
    num_micro_batches: int = Field(ge=1, le=1 << 20)
    context_length: int = Field(ge=1, le=1 << 25)
    max_tokens: int | None = Field(default=None, le=1 << 26)
    max_pieces: int = Field(default=0, ge=0, le=MANY)
    max_displacement: int = Field(default=16, ge=1, le=MANY)
    mean_displacement: float = Field(default=0.5, gt=0, allow_inf_nan=False)
    thresholds: tuple[int, ...] | Literal["tune"] = "tune"
    max_queues: int = Field(default=3, ge=1, le=3)
    window_steps: int = Field(default=64, ge=1, le=4096)
    moves_per_piece: int = Field(default=0, ge=0, le=MOST_MOVES)
    objective: Literal["schedule", "max"] = "schedule"
    token_band: float = Field(default=0.0, ge=0, lt=1)
    source_band: float = Field(default=0.0, ge=0, lt=1)
    global_batches: int = Field(default=1, ge=1, le=4096)
    longest_first: bool = False

    @model_validator(mode="after")
    def _window(self) -> PackingSettings:
        if self.max_tokens is not None and self.max_tokens < self.context_length:
            raise ValueError(
                f"max_tokens is {self.max_tokens} but must be at least context_length "
                f"{self.context_length}"
            )
        given = () if self.thresholds == "tune" else self.thresholds
        if list(given) != sorted(set(given)) or min(given, default=1) < 1:
            raise ValueError(f"thresholds {list(given)} must be positive and ascending")
        if self.max_displacement < 2 * self.global_batches - 1:
            raise ValueError(
                f"max_displacement is {self.max_displacement} but must be at least "
                f"{2 * self.global_batches - 1} at global_batches {self.global_batches}: a piece "
                "left by one window may run at the end of the next"
            )
        return self

    @property
    def bound(self) -> int:
        """S_max: `max_tokens`, or a quarter more than the context length."""
        return self.context_length * 5 // 4 if self.max_tokens is None else self.max_tokens
