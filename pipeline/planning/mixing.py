"""Length indexes to the stream, and what the stream took of each source."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from typing import Any

from packer.cut_source import CutSource, SetAside
from packer.source_lengths import SourceLengths
from packer.stream import Selection, Stream
from pipeline.config import RunConfig
from pipeline.planning.chain import ChainEnd, Pool
from pipeline.shard.segment import Segment, SegmentSource
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


def open_stream(chain: ChainEnd, config: RunConfig) -> Stream:
    """The seeded, mixed stream of pieces of a chain's next segment.

    Args:
        chain: its end; `chain.numbers` are the sources of the configuration, in its order.
        config: of the segment.

    Raises:
        PlanError: a source without documents, or of which none is left; a document longer than
            the context where that is an error.
    """
    stores = chain.segment_stores
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
                SourceLengths(
                    lengths=chain.stores[number].lengths,
                    weight=source.weight,
                    max_epochs=source.max_epochs,
                    name=source.name,
                    number=number,
                    earlier=chain.pool.get(number, ()),
                    **_policies(**config.documents_of(source).model_dump()),
                )
                for number, source in zip(chain.numbers, config.sources, strict=True)
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


def replay(
    segment: Segment, stores: Sequence[TokenStore], pool: Pool, *, target_tokens: int | None
) -> Stream:
    """The stream of a segment that is there.

    Args:
        segment: of a finished set.
        stores: of the set's sources.
        pool: what the segments before it have run.
        target_tokens: where it ends: the segment's own target, or another.
    """
    return Stream(
        [
            SourceLengths(
                lengths=stores[entry.source].lengths,
                weight=entry.weight,
                max_epochs=entry.max_epochs,
                name=stores[entry.source].name,
                number=entry.source,
                earlier=pool.get(entry.source, ()),
                **_policies(entry.min_tokens, entry.longer_than_context),
            )
            for entry in segment.sources
        ],
        seed=segment.seed,
        context_length=segment.context_length,
        target_tokens=target_tokens,
        at_source_end=segment.at_source_end,
    )


def _policies(min_tokens: int, longer_than_context: str) -> dict[str, Any]:
    policy = "cut" if longer_than_context == "error" else longer_than_context  # then none is cut
    return {"min_tokens": min_tokens, "longer_than_context": policy}


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
    asked: Sequence[Mapping[str, Any]], stream: Stream, selection: Selection
) -> tuple[SegmentSource, ...]:
    """What a segment says of each source: how it was asked for, and what the stream took.

    Args:
        asked: fields of `SegmentSource` that say how, in the order of the stream's sources.
        stream: of the segment.
        selection: of all of it.
    """
    entries = []
    for index, (fields_asked, cut) in enumerate(zip(asked, stream.sources, strict=True)):
        counts = {name: int(getattr(selection, name)[index]) for name in _COUNTS}
        last = int(selection.last_epoch[index])
        entries.append(
            SegmentSource(
                source=cut.number,
                **fields_asked,
                **counts,
                **asdict(cut.set_aside),
                last_epoch=None if last == counts["passes"] - 1 else last,
            )
        )
    return tuple(entries)


def asked_for(config: RunConfig) -> list[dict[str, Any]]:
    """How each source is asked for, as `SegmentSource` names it."""
    return [
        {
            "weight": source.weight,
            "max_epochs": source.max_epochs,
            **config.documents_of(source).model_dump(),
        }
        for source in config.sources
    ]


def selection_totals(segments: Sequence[Segment]) -> dict[str, int]:
    """Documents and tokens that are in no piece of epoch 0, by reason, over all sources.

    Of several segments that have a source the last one says it.
    """
    last = {entry.source: entry for segment in segments for entry in segment.sources}
    first = [entry for entry in last.values() if entry.final_epoch == 0]
    return {
        "unselected_documents": sum(entry.unselected_documents for entry in first),
        "unselected_tokens": sum(entry.unselected_tokens for entry in first),
        **{
            field.name: sum(getattr(entry, field.name) for entry in last.values())
            for field in fields(SetAside)
        },
    }
