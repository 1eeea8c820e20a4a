"""Length indexes to the stream, and what the stream took of each source."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, fields
from typing import Any

from packer.cut_source import CutSource, SetAside
from packer.source_lengths import SourceLengths
from packer.stream import Selection, Stream
from pipeline.config import RunConfig
from pipeline.settings.documents import SourceConfig
from pipeline.shard.manifest import SegmentSource
from pipeline.shard.token_store import TokenStore

_NAMED_DOCUMENTS = 3
"""Documents that a message names."""
_COUNTS = (
    "passes",
    "tokens",
    "unselected_documents",
    "unselected_pieces",
    "unselected_tokens",
)
"""Fields of `SegmentSource` that are those of `Selection`."""


class PlanError(ValueError):
    """No plan can be made; the message says which setting is in the way."""


def open_stream(stores: Sequence[TokenStore], config: RunConfig) -> Stream:
    """The seeded, mixed stream of pieces over token stores, in the order of `config.sources`.

    Raises:
        PlanError: a source without documents, or of which none is left; a document longer than
            the context where that is an error.
    """
    for store in stores:
        if not store.documents:
            rejected = store.identity["rejected"]
            words = ", ".join(f"{count} {reason}" for reason, count in rejected.items())
            raise PlanError(
                f"source {store.name!r} has no documents; rejected: {words or 'none'} "
                f"({store.directory / 'rejects.parquet'}); check its paths, format, "
                "text_column or token_column and the tokenizer, or take it out"
            )
    try:
        stream = Stream(
            [
                _lengths(store, source, config)
                for store, source in zip(stores, config.sources, strict=True)
            ],
            seed=config.mixture.seed,
            context_length=config.packing.context_length,
            target_tokens=config.mixture.target_tokens,
            at_source_end=config.at_source_end,
        )
    except ValueError as error:
        raise PlanError(str(error)) from error
    for store, source, cut in zip(stores, config.sources, stream.sources, strict=True):
        if config.documents_of(source).longer_than_context == "error" and len(cut.long_documents):
            raise PlanError(_too_long(store, cut, config.packing.context_length))
    return stream


def _lengths(store: TokenStore, source: SourceConfig, config: RunConfig) -> SourceLengths:
    documents = config.documents_of(source)
    policy = documents.longer_than_context
    return SourceLengths(
        lengths=store.lengths,
        weight=source.weight,
        max_epochs=source.max_epochs,
        min_tokens=documents.min_tokens,
        longer_than_context="cut" if policy == "error" else policy,  # then none is cut
        name=source.name,
    )


def _too_long(store: TokenStore, cut: CutSource, context_length: int) -> str:
    found = cut.long_documents
    named = []
    for doc_id in found[:_NAMED_DOCUMENTS].tolist():
        file, record = store.origin_of(doc_id)
        tokens = int(store.lengths[doc_id])
        named.append(f"document {doc_id} ({file}, record {record}) of {tokens} tokens")
    more = f" and {len(found) - len(named)} more" if len(found) > len(named) else ""
    return (
        f"source {store.name!r} has {len(found)} documents longer than packing.context_length "
        f'{context_length}, and its longer_than_context is "error": {", ".join(named)}{more}; '
        'raise packing.context_length, or set documents.longer_than_context to "cut", "truncate" '
        'or "drop"'
    )


def segment_sources(
    config: RunConfig, stream: Stream, selection: Selection
) -> tuple[SegmentSource, ...]:
    """What a segment says of each source: how it was asked for, and what the stream took."""
    return tuple(
        SegmentSource(
            source=index,
            weight=source.weight,
            max_epochs=source.max_epochs,
            **config.documents_of(source).model_dump(),
            **{name: int(getattr(selection, name)[index]) for name in _COUNTS},
            **asdict(cut.set_aside),
        )
        for index, (source, cut) in enumerate(zip(config.sources, stream.sources, strict=True))
    )


def selection_totals(sources: Sequence[SegmentSource]) -> dict[str, Any]:
    """Documents and tokens that are in no piece of epoch 0, by reason, over all sources."""
    first = [source for source in sources if source.passes == 1]
    return {
        "unselected_documents": sum(source.unselected_documents for source in first),
        "unselected_tokens": sum(source.unselected_tokens for source in first),
        **{
            field.name: sum(getattr(source, field.name) for source in sources)
            for field in fields(SetAside)
        },
    }
