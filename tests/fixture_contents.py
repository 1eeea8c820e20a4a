"""What the set of `tests.fixture_set` holds: its numbers, the documents and their token stores."""

from __future__ import annotations

import hashlib
from functools import cache

import numpy as np

from pipeline.shard import schema
from tests.fixture_files import Columns, StoreData

S, S_MAX, N, A, MAX_PIECES, MAX_DISPLACEMENT = 16, 20, 2, 32, 9, 3
CROSSOVER, SCALE, CONSTANT, KV_EXCHANGE = 24, 256, 512, 0.25
PARTS = (5, 3)
"""Steps of each part, where long documents are cut."""
STEPS, SLOTS = sum(PARTS), N
ROWS_PER_GROUP = 4
LENGTHS = {"books": [40, 9, 16, 33, 4], "web": [5, 12, 1, 7, 3, 16, 8, 2, 40_000, 6]}
STORE_PARTS = {"books": [3, 2], "web": [10]}
"""Documents of each part of a token store."""
REFUSED = 3
"""The record of `web` that is no document."""
VOCABULARY = 50_000
REASONS, UNITS = ("too_short", "too_long", "truncated"), ("documents", "tokens")

Piece = dict[str, int]
"""By the names of the plan's columns, and `taken`: how many tokens a pass takes of its document."""


@cache
def document_tokens(source: int, doc_id: int, length: int) -> tuple[int, ...]:
    """The ids of a document, unlike those of any other."""
    return tuple((source * 20_011 + doc_id * 1_009 + i * 7 + 1) % VOCABULARY for i in range(length))


def length_of(piece: Piece) -> int:
    """Tokens of the whole document of a piece."""
    return list(LENGTHS.values())[piece["source"]][piece["doc_id"]]


def piece_tokens(piece: Piece) -> int:
    return piece["doc_stop"] - piece["doc_start"]


def store_of(name: str, source: int) -> StoreData:
    """The token store of a source."""
    lengths = LENGTHS[name]
    documents = [list(document_tokens(source, i, length)) for i, length in enumerate(lengths)]
    parts, index = [], []
    table: Columns = {column: [] for column in schema.PARTS.names}
    first = 0
    for part, count in enumerate(STORE_PARTS[name]):
        mine = documents[first : first + count]
        offsets = np.cumsum([0, *map(len, mine)]).tolist()
        parts.append([token for document in mine for token in document])
        index.append(
            {
                "offset": offsets[:-1],
                "length": list(map(len, mine)),
                "file": [0] * count,
                "record": [n for n in range(count + 1) if (source, n) != (1, REFUSED)][:count],
            }
        )
        row = {
            "part": part,
            "first_doc_id": first,
            "documents": count,
            "tokens": offsets[-1],
            "file": 0,
            "first_record": first,
        }
        for column, value in row.items():
            table[column].append(value)
        first += count
    key = hashlib.sha256(name.encode()).hexdigest()
    identity = {
        "format": schema.STORE_FORMAT,
        "version": 1,
        "name": name,
        "key": key,
        "dtype": "uint16",
        "tokenizer": {
            "name": "toy",
            "sha256": "0" * 64,
            "vocab_size": VOCABULARY,
            "bos_id": None,
            "eos_id": None,
        },
        "documents": len(lengths),
        "tokens": sum(lengths),
        "text_bytes": 4 * sum(lengths),
        "rejected": {"empty": 1} if source else {},
    }
    inputs: Columns = {"path": ["a.jsonl"], "bytes": [1], "xxh3_128": ["0" * 32]}
    rejects: Columns = {column: [] for column in schema.REJECTS.names}
    if source:
        rejects = {"path": ["a.jsonl"], "record": [REFUSED], "reason": ["empty"], "detail": [""]}
    return StoreData(name, identity, documents, parts, index, table, inputs, rejects, list(lengths))
