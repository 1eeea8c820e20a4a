"""The run's settings: what there is, what is allowed, frozen afterwards."""

from __future__ import annotations

import hashlib
import json
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    StringConstraints,
    field_validator,
    model_serializer,
    model_validator,
)

from packer.orders import AUTO, check_rule
from packer.plan import MOST_MOVES
from packer.schedule import Coupling, Schedule
from pipeline.stores.rejects import check_reasons


class ConfigError(ValueError):
    """The configuration is wrong; the message says where, what was found and what is allowed."""


NonEmpty = Annotated[str, StringConstraints(min_length=1)]
LongDocuments = Literal["cut", "truncate", "drop", "error"]
_MANY = 2**31 - 1
"""No count of a step goes beyond this."""


def _whole_if_so(value: float) -> float:
    return int(value) if value == int(value) else value


Epochs = Annotated[float, Field(gt=0, le=_MANY, allow_inf_nan=False), AfterValidator(_whole_if_so)]


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class TokenizerConfig(_Table):
    """Which vocabulary, and what is added at a document's true ends.

    `path` is a tokenizer.json, a directory that holds one, a .tiktoken file (may be .gz), a
    tekken*.json, `package:NAME` for an installed Python package that carries one tokenizer.json,
    `package:NAME/PATH` for another of its files, or a hub name (needs the `hf` extra). `pattern`
    and `special_tokens` say of a .tiktoken or tekken file what it does not. Where every source
    brings its own tokens, `vocab_size` may stand in the place of `path`.
    """

    path: str | None = None
    vocab_size: int | None = Field(default=None, ge=1, le=1 << 32)
    engine: Literal["auto", "hf", "tiktoken", "splintr"] = "auto"
    pattern: NonEmpty | None = None
    special_tokens: dict[NonEmpty, Annotated[int, Field(ge=0, lt=2**31)]] = {}
    add_bos: bool = False
    add_eos: bool = True
    bos_token: str | None = None
    eos_token: str | None = None
    special_tokens_in_text: Literal["text", "tokens"] = "text"

    @model_validator(mode="after")
    def _one_of(self) -> TokenizerConfig:
        if (self.path is None) == (self.vocab_size is None):
            raise ValueError(
                "give exactly one of path and vocab_size (for sources that all bring tokens)"
            )
        if self.path is None and (self.add_bos or self.bos_token or self.eos_token):
            raise ValueError("add_bos, bos_token and eos_token need path, a vocabulary")
        return self


_TABLES = ("auto", "parquet", "arrow")


class SourceConfig(_Table):
    """One corpus: where its files are, how they are read, and what of them is used.

    It brings tokens where its format is "megatron" or `token_column` names a column of ids.
    `min_tokens` and `longer_than_context` stand before those of `DocumentsConfig`.
    """

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")
    paths: tuple[NonEmpty, ...] = Field(min_length=1)
    format: Literal["auto", "jsonl", "parquet", "arrow", "text", "datasets", "megatron"] = "auto"
    text_column: str = "text"
    token_column: NonEmpty | None = None
    ends: Literal["as_given", "add"] | None = None
    keep_columns: tuple[NonEmpty, ...] = ()
    id_column: NonEmpty | None = None
    duplicate_ids: Literal["count", "reject", "stop"] = "count"
    dataset_config: NonEmpty | None = None
    dataset_split: NonEmpty | None = None
    pattern: str = "*"
    weight: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    max_epochs: Epochs = 1
    min_tokens: int | None = Field(default=None, ge=1, le=_MANY)
    longer_than_context: LongDocuments | None = None

    @model_validator(mode="after")
    def _dataset(self) -> SourceConfig:
        if self.format == "datasets" and len(self.paths) != 1:
            raise ValueError('format = "datasets" takes one path; make a source of each')
        given = self.dataset_config or self.dataset_split
        if self.format != "datasets" and given:
            raise ValueError(
                f'dataset_config and dataset_split need format = "datasets": {given!r}'
            )
        return self

    @field_validator("keep_columns")
    @classmethod
    def _once(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(names)) < len(names):
            raise ValueError(f"a column stands twice in {list(names)}")
        return names

    @model_validator(mode="after")
    def _ids(self) -> SourceConfig:
        if self.duplicate_ids != "count" and self.id_column is None:
            raise ValueError(f'duplicate_ids is "{self.duplicate_ids}" but id_column is not set')
        return self

    @model_validator(mode="after")
    def _one_reading(self) -> SourceConfig:
        both = {"text_column", "token_column"} <= self.model_fields_set
        if self.token_column is not None and both:
            raise ValueError("give text_column or token_column, not both")
        if self.token_column is not None and self.format not in _TABLES:
            raise ValueError(
                f'token_column is for Parquet and Arrow, but format is "{self.format}"'
            )
        if (self.keep_columns or self.id_column) and self.brings_tokens:
            raise ValueError(
                "keep_columns and id_column are for sources of text; this one brings tokens"
            )
        if self.ends == "as_given" and not self.brings_tokens:
            raise ValueError(
                'ends = "as_given" is for sources that bring tokens; what is added to text is set '
                "by tokenizer.add_bos and tokenizer.add_eos"
            )
        return self

    @model_serializer(mode="wrap")
    def _as_given(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        fields = handler(self)
        if self.token_column is not None:
            del fields["text_column"]  # reading the settings again must not find both
        return fields

    @property
    def brings_tokens(self) -> bool:
        return self.format == "megatron" or self.token_column is not None

    @property
    def given_ends(self) -> str | None:
        """What is done with the ends of documents that it brings as tokens; None for text."""
        return (self.ends or "as_given") if self.brings_tokens else None


class DocumentsConfig(_Table):
    """Which documents are used, and what becomes of those longer than the context."""

    min_tokens: int = Field(default=1, ge=1, le=_MANY)
    longer_than_context: LongDocuments = "cut"


class RejectSettings(_Table):
    """When records that are not accepted stop the job; changes nothing in what it writes."""

    stop_on: tuple[str, ...] = ()
    max_share: float = Field(default=0.1, ge=0, le=1)

    @field_validator("stop_on")
    @classmethod
    def _known(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        check_reasons(names)
        return names


class MixtureConfig(_Table):
    """How sources become one stream.

    `at_source_end` defaults to "stop" where weights are given, so that the mixture holds to the
    end, and to "drop" where they are not, so that every document is used.
    """

    seed: int = Field(default=0, ge=0, lt=2**63)
    target_tokens: int | None = Field(default=None, ge=1, lt=2**62)
    at_source_end: Literal["stop", "drop"] | None = None


class PackingSettings(_Table):
    """Bounds of a micro-batch and a step, and the policy that fills them."""

    policy: Literal["concat", "reorder", "wlb", "lookahead", "fixed_greedy"] = "lookahead"
    num_micro_batches: int = Field(ge=1, le=1 << 20)
    context_length: int = Field(ge=1, le=1 << 25)
    max_tokens: int | None = Field(default=None, le=1 << 26)
    max_pieces: int = Field(default=0, ge=0, le=_MANY)
    max_displacement: int = Field(default=16, ge=1, le=_MANY)
    mean_displacement: float = Field(default=0.5, gt=0, allow_inf_nan=False)
    thresholds: tuple[int, ...] | Literal["tune"] = "tune"
    max_queues: int = Field(default=3, ge=1, le=3)
    window_steps: int = Field(default=32, ge=1, le=4096)
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


Speed = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class HardwareSettings(_Table):
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


class WorkloadSettings(_Table):
    """What a piece costs: a crossover length, the model that gives it, or measured times."""

    crossover: int | None = Field(default=None, ge=1, le=1 << 26)
    model_config_path: str | None = Field(default=None, alias="model_config")
    profile: NonEmpty | None = None
    hardware: HardwareSettings | None = None
    constant_tokens: int = Field(default=0, ge=0, le=_MANY)

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


class ContextParallelSettings(_Table):
    """CP degrees to plan for; 1 needs no plan."""

    sizes: tuple[int, ...] = ()
    strategy: Literal["per_sequence", "per_document"] = "per_document"

    @model_validator(mode="after")
    def _degrees(self) -> ContextParallelSettings:
        allowed = all(2 <= size <= 65_536 for size in self.sizes)
        if not allowed or len(set(self.sizes)) != len(self.sizes):
            raise ValueError(f"sizes {list(self.sizes)} must be distinct and 2 to 65536")
        return self


class ParallelSettings(_Table):
    """The cluster that times are computed for, and in which order its ranks run micro-batches.

    Moves no document: `micro_batch_order` is a rule of `packer.orders` that readers follow, "auto"
    the one of least time on this cluster.
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


class ShardSettings(_Table):
    """How the result is cut into files."""

    shard_tokens: int = Field(default=16_777_216, ge=1, le=1 << 30)
    row_group_tokens: int = Field(default=131_072, ge=1)
    split_bytes: int = Field(default=33_554_432, ge=1024)
    run_tokens: int = Field(default=33_554_432, ge=1024)
    store: str | None = None


class JobSettings(_Table):
    """How the job runs; changes nothing in what it writes."""

    workers: int | None = Field(default=None, ge=1)
    address: str | None = None
    object_store_mb: int = Field(default=256, ge=80)
    executor: Literal["ray", "local"] = "ray"


class RunConfig(_Table):
    """Everything a build depends on."""

    tokenizer: TokenizerConfig
    sources: tuple[SourceConfig, ...] = Field(min_length=1)
    rejects: RejectSettings = RejectSettings()
    documents: DocumentsConfig = DocumentsConfig()
    mixture: MixtureConfig = MixtureConfig()
    packing: PackingSettings
    workload: WorkloadSettings
    context_parallel: ContextParallelSettings = ContextParallelSettings()
    parallel: ParallelSettings = ParallelSettings()
    shards: ShardSettings = ShardSettings()
    job: JobSettings = JobSettings()

    @model_validator(mode="after")
    def _whole(self) -> RunConfig:
        names = [source.name for source in self.sources]
        if len(set(names)) != len(names):
            raise ValueError(f"two sources have one name: {sorted(names)}")
        if self.tokenizer.path is None:
            for source in self.sources:
                _needs_no_vocabulary(source)
        weighted = [source.weight is not None for source in self.sources]
        if any(weighted) and not all(weighted):
            raise ValueError("give every source a weight, or none")
        schedule_of(self.parallel).num_per_rank(self.packing.num_micro_batches)
        return self

    def documents_of(self, source: SourceConfig) -> DocumentsConfig:
        """What holds for a source: its own settings, or those of all."""
        own = {
            "min_tokens": source.min_tokens,
            "longer_than_context": source.longer_than_context,
        }
        given = {name: value for name, value in own.items() if value is not None}
        return self.documents.model_copy(update=given)

    @property
    def at_source_end(self) -> str:
        """What happens when a source has no epochs left, resolved."""
        weighted = self.sources[0].weight is not None
        return self.mixture.at_source_end or ("stop" if weighted else "drop")


def _needs_no_vocabulary(source: SourceConfig) -> None:
    if not source.brings_tokens:
        raise ValueError(
            f"source {source.name!r} holds text, which needs tokenizer.path; set it, or set the "
            'source\'s token_column or format = "megatron" if it holds token ids'
        )
    if source.given_ends == "add":
        raise ValueError(
            f'source {source.name!r} has ends = "add", which needs tokenizer.path; set it, or '
            'ends = "as_given"'
        )


def fingerprint(value: Any) -> str:
    """SHA-256 of a value's canonical JSON: sorted keys, no spaces."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()
