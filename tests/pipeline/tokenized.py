"""A source tokenized split by split, and what lies in its store."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from pipeline.files.storage import digest_file
from pipeline.reading.listing import list_inputs
from pipeline.reading.splits import plan_splits
from pipeline.settings.documents import SourceConfig
from pipeline.shard.token_store import TokenStore
from pipeline.stores.finish import finish_store
from pipeline.stores.tokenize import StorePartReceipt, tokenize_split
from pipeline.tokenizer.identity import TokenizerIdentity
from tests.corpora import tiny_identity

KEY = "ab" * 32


def contents(directory: Path) -> dict[str, bytes]:
    """Every file below a directory, by relative path."""
    files = (file for file in sorted(directory.rglob("*")) if file.is_file())
    return {str(file.relative_to(directory)): file.read_bytes() for file in files}


def tokenize_all(
    source: SourceConfig, directory: Path, *, split_bytes: int = 1 << 20, **identity: Any
) -> tuple[list[StorePartReceipt], Callable[..., dict[str, Any]]]:
    """The receipts of a source, and what finishes the store when it is called."""
    inputs = list_inputs(source)
    made_with: TokenizerIdentity = replace(tiny_identity(), **identity)
    splits = plan_splits(source, inputs, split_bytes=split_bytes)
    receipts = [tokenize_split(split, source, made_with, directory) for split in splits]

    def finish(**changes: Any) -> dict[str, Any]:
        settings = {
            "name": source.name,
            "key": KEY,
            "identity": made_with,
            "inputs": inputs,
            "digests": [digest_file(file.path) for file in inputs],
            "receipts": receipts,
            "splits": splits,
        }
        return finish_store(directory, **{**settings, **changes})

    return receipts, finish


def documents_of(directory: Path) -> list[list[int]]:
    """The ids of each document of a store."""
    store = TokenStore(directory)
    return [store.tokens_of(doc_id).tolist() for doc_id in range(store.documents)]


def rejects_of(directory: Path) -> list[tuple[str, int, str]]:
    """Path, record and reason of what a store refused."""
    rows = pq.read_table(directory / "rejects.parquet").to_pylist()
    return [(row["path"], row["record"], row["reason"]) for row in rows]
