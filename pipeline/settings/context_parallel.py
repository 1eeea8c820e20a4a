"""How micro-batches are cut over context-parallel ranks."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from pipeline.settings.table import Table

CPStrategy = Literal[
    "per_sequence",
    "per_document",
    "per_document_aligned",
    "mixed",
    "padded_head_tail",
    "adaptive",
]
"""`packer.context_parallel.STRATEGIES`, spelled out so that settings load no kernels."""
CPCandidate = Literal["per_sequence", "per_document", "mixed"]
CPThroughput = Literal["default", "flat"]
_ALL: tuple[CPCandidate, ...] = ("per_sequence", "per_document", "mixed")


class ContextParallelSettings(Table):
    """CP degrees to plan for, where 1 needs no plan, and how.

    `kv_exchange` is the exposed time of a key-value token that a rank receives, in linear-token
    equivalents; "default" throughput of attention is the workload profile's table, where it has
    none the published one.
    """

    sizes: tuple[int, ...] = ()
    strategy: CPStrategy = "adaptive"
    kv_exchange: float = Field(default=0.0, ge=0, le=64)
    pad_to: int = Field(default=1, ge=1, le=65_536)
    candidates: Annotated[tuple[CPCandidate, ...], Field(min_length=1)] = _ALL
    throughput: CPThroughput = "default"

    @model_validator(mode="after")
    def _degrees(self) -> ContextParallelSettings:
        allowed = all(2 <= size <= 65_536 for size in self.sizes)
        if not allowed or len(set(self.sizes)) != len(self.sizes):
            raise ValueError(f"sizes {list(self.sizes)} must be distinct and 2 to 65536")
        return self

    @model_validator(mode="after")
    def _strategy_has_use_for_them(self) -> ContextParallelSettings:
        if self.pad_to > 1 and self.strategy != "padded_head_tail":
            raise ValueError(
                f'pad_to is {self.pad_to}, but strategy "{self.strategy}" pads nothing; leave '
                'pad_to out, or set strategy = "padded_head_tail"'
            )
        if len(set(self.candidates)) != len(self.candidates):
            raise ValueError(f"candidates {list(self.candidates)} must be distinct")
        if self.candidates != _ALL and self.strategy != "adaptive":
            raise ValueError(
                f'candidates are given, but strategy "{self.strategy}" has no choice; leave '
                'candidates out, or set strategy = "adaptive"'
            )
        return self
