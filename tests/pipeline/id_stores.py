"""Token stores of sources that bring ids of their own."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq

from pipeline.settings.documents import SourceConfig
from pipeline.shard.token_store import TokenStore
from pipeline.tokenizer.identity import without_vocabulary
from tests.corpora import build_store


def store_of(source: SourceConfig, directory: Path, **options: int) -> TokenStore:
    """The finished store of a source whose ids no vocabulary names."""
    vocab_size = options.pop("vocab_size", 100_000)
    identity = without_vocabulary(vocab_size)
    return TokenStore(build_store(source, directory, identity=identity, **options))


def rejects_of(store: TokenStore) -> list[tuple[str, int, str, str]]:
    """Path, record, reason and detail of what a store refused."""
    rows = pq.read_table(store.directory / "rejects.parquet").to_pylist()
    return [(row["path"], row["record"], row["reason"], row["detail"]) for row in rows]
