"""Where documents come from: vocabulary, sources, which are used and which are rejected."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    Field,
    SerializerFunctionWrapHandler,
    field_validator,
    model_serializer,
    model_validator,
)

from pipeline.settings.table import MANY, NonEmpty, Table
from pipeline.stores.rejects import check_reasons

LongDocuments = Literal["cut", "truncate", "drop", "error"]


def _whole_if_so(value: float) -> float:
    return int(value) if value == int(value) else value


Epochs = Annotated[float, Field(gt=0, le=MANY, allow_inf_nan=False), AfterValidator(_whole_if_so)]


class TokenizerConfig(Table):
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
    special_tokens: dict[NonEmpty, Annotated[int, Field(ge=0, lt=2**31)]] = Field(
        default_factory=dict
    )
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


_FORMATS_OF_COLUMNS = ("auto", "parquet", "arrow")


class SourceConfig(Table):
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
    min_tokens: int | None = Field(default=None, ge=1, le=MANY)
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
        if self.token_column is not None and self.format not in _FORMATS_OF_COLUMNS:
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


class DocumentsConfig(Table):
    """Which documents are used, and what becomes of those longer than the context."""

    min_tokens: int = Field(default=1, ge=1, le=MANY)
    longer_than_context: LongDocuments = "cut"


class RejectSettings(Table):
    """When records that are not accepted stop the job; changes nothing in what it writes."""

    stop_on: tuple[str, ...] = ()
    max_share: float = Field(default=0.1, ge=0, le=1)

    @field_validator("stop_on")
    @classmethod
    def _known(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        check_reasons(names)
        return names
