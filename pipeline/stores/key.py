"""What a token store's bytes depend on, as one name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pipeline.config import fingerprint
from pipeline.reading.formats import resolve_formats
from pipeline.reading.listing import InputFile
from pipeline.settings.documents import SourceConfig
from pipeline.shard.schema import VERSION
from pipeline.tokenizer.identity import TokenizerIdentity


def store_key(
    source: SourceConfig,
    inputs: Sequence[InputFile],
    digests: Sequence[str],
    tokenizer_identity: TokenizerIdentity,
    split_bytes: int,
) -> str:
    """The key of a source's token store, 64 hex digits: a hash over all that its bytes depend on.

    The weight, the epochs and the place of the files are no part of it.

    Args:
        source: the source.
        inputs: its files.
        digests: their digests, (inputs,).
        tokenizer_identity: vocabulary and policy.
        split_bytes: what the splits were planned with.
    """
    kinds = resolve_formats(source, inputs)
    optional: dict[str, Any] = {}
    if source.keep_columns:
        optional["keep_columns"] = sorted(source.keep_columns)
    if source.id_column is not None:
        optional["ids"] = [source.id_column, source.duplicate_ids == "reject"]
    if source.brings_tokens:
        optional["tokens"] = {"token_column": source.token_column, "ends": source.given_ends}
    return fingerprint(
        {
            **optional,
            "version": VERSION,
            "inputs": [
                [file.name, file.bytes, digest]
                for file, digest in zip(inputs, digests, strict=True)
            ],
            "formats": kinds,
            "text_column": None if set(kinds) == {"text"} else source.text_column,
            "split_bytes": split_bytes,
            "tokenizer": tokenizer_identity.key_dict(),
        }
    )
