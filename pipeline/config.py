"""A run's configuration: its tables together, and what must hold between them."""

from __future__ import annotations

import hashlib
import json
from typing import Any, Literal

from pydantic import Field, model_validator

from pipeline.settings.cluster import ParallelSettings, WorkloadSettings, schedule_of
from pipeline.settings.context_parallel import ContextParallelSettings
from pipeline.settings.documents import (
    DocumentsConfig,
    RejectSettings,
    SourceConfig,
    TokenizerConfig,
)
from pipeline.settings.packing import MixtureConfig, PackingSettings
from pipeline.settings.table import Table


class ConfigError(ValueError):
    """The configuration is wrong; the message says where, what was found and what is allowed."""


class ShardSettings(Table):
    """How the result is cut into files."""

    shard_tokens: int = Field(default=16_777_216, ge=1, le=1 << 30)
    row_group_tokens: int = Field(default=131_072, ge=1)
    split_bytes: int = Field(default=33_554_432, ge=1024)
    run_tokens: int = Field(default=33_554_432, ge=1024)
    store: str | None = None


class JobSettings(Table):
    """How the job runs; changes nothing in what it writes."""

    workers: int | None = Field(default=None, ge=1)
    address: str | None = None
    object_store_mb: int = Field(default=256, ge=80)
    executor: Literal["ray", "local"] = "ray"
    scratch: str | None = None


class RunConfig(Table):
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
