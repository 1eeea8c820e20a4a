"""What work costs, and the cluster that runs it."""

from __future__ import annotations

from typing import Annotated

from pydantic import ConfigDict, Field, model_validator

from packer.orders import AUTO, check_rule
from packer.schedule import Coupling, Schedule
from pipeline.settings.table import MANY, NonEmpty, Table

Speed = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class HardwareSettings(Table):
    """What a GPU reaches and how a layer is spread, for `packer.hardware`; forward, achieved."""

    gemm_tflops: Speed
    attention_tflops: Speed
    tp_size: int = Field(default=1, ge=1, le=65_536)
    cp_size: int = Field(default=1, ge=1, le=65_536)
    tp_gb_per_s: Speed | None = None
    cp_gb_per_s: Speed | None = None
    element_bytes: int = Field(default=2, ge=1, le=8)

    @model_validator(mode="after")
    def _bandwidths(self) -> HardwareSettings:
        for axis, size, speed in (
            ("tp", self.tp_size, self.tp_gb_per_s),
            ("cp", self.cp_size, self.cp_gb_per_s),
        ):
            if (size > 1) != (speed is not None):
                raise ValueError(
                    f"{axis}_size is {size} and {axis}_gb_per_s {speed}; ranks that exchange need "
                    "a bandwidth, one rank has none"
                )
        return self


class WorkloadSettings(Table):
    """What a piece costs: a crossover length, the model that gives it, or measured times."""

    crossover: int | None = Field(default=None, ge=1, le=1 << 26)
    model_config_path: str | None = Field(default=None, alias="model_config")
    profile: NonEmpty | None = None
    hardware: HardwareSettings | None = None
    constant_tokens: int = Field(default=0, ge=0, le=MANY)

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    @model_validator(mode="after")
    def _one_of(self) -> WorkloadSettings:
        if [self.crossover, self.model_config_path, self.profile].count(None) != 2:
            raise ValueError("give exactly one of crossover, model_config and profile")
        if self.hardware is not None and self.model_config_path is None:
            raise ValueError(
                "hardware needs model_config, whose FLOPs it turns into time; a crossover and a "
                "profile have the hardware in them"
            )
        return self


class ParallelSettings(Table):
    """The cluster that times are computed for, and in which order its ranks run micro-batches.

    Under `lookahead` with objective "schedule" four of them shape the plan; `micro_batch_order` is
    a rule of `packer.orders` that readers follow, "auto" the one of least time on this cluster.
    """

    dp_size: int = Field(default=1, ge=1, le=1 << 20)
    pp_size: int = Field(default=1, ge=1, le=1024)
    virtual_stages: int = Field(default=1, ge=1, le=1024)
    coupling: Coupling = "gradient_sync"
    backward_factor: float = 2.0
    stage_shares: tuple[int, ...] = ()
    embedding_cost: float = 0.0
    head_cost: float = 0.0
    micro_batch_order: str = AUTO

    @model_validator(mode="after")
    def _possible(self) -> ParallelSettings:
        schedule_of(self)
        if self.micro_batch_order != AUTO:
            check_rule(self.micro_batch_order)
        return self

    @property
    def num_stages(self) -> int:
        """Parts that the model is cut into."""
        return self.pp_size * self.virtual_stages


def schedule_of(settings: ParallelSettings) -> Schedule:
    """The schedule that times are computed for.

    Raises:
        ValueError: settings that no schedule has.
    """
    return Schedule(
        dp_size=settings.dp_size,
        pp_size=settings.pp_size,
        virtual_stages=settings.virtual_stages,
        coupling=settings.coupling,
        backward_factor=settings.backward_factor,
        stage_shares=settings.stage_shares,
        embedding_cost=settings.embedding_cost,
        head_cost=settings.head_cost,
    )
