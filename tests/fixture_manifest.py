"""The manifest of the set of `tests.fixture_set`."""

from __future__ import annotations

from typing import Any

from pipeline.shard import schema
from tests.fixture_contents import (
    CONSTANT,
    CROSSOVER,
    KV_EXCHANGE,
    LENGTHS,
    MAX_DISPLACEMENT,
    MAX_PIECES,
    REASONS,
    ROWS_PER_GROUP,
    S_MAX,
    SCALE,
    UNITS,
    A,
    N,
    Piece,
    S,
    piece_tokens,
)
from tests.fixture_files import StoreData
from tests.fixture_stream import Rule, cut


def _segment_source(
    source: int, max_epochs: int, pieces: list[Piece], rule: Rule
) -> dict[str, Any]:
    lengths = list(LENGTHS.values())[source]
    mine = [piece for piece in pieces if piece["source"] == source]
    last = [piece for piece in mine if piece["epoch"] == max_epochs - 1]
    whole = cut(source, 0, range(len(lengths)), rule)
    entry: dict[str, Any] = {
        "source": source,
        "weight": rule.weights[source],
        "max_epochs": max_epochs,
        "longer_than_context": rule.longer_than_context,
        "min_tokens": rule.min_tokens,
        "passes": max_epochs,
        "tokens": sum(map(piece_tokens, mine)),
        "unselected_documents": len({p["doc_id"] for p in whole} - {p["doc_id"] for p in last}),
        "unselected_pieces": len(whole) - len(last),
        "unselected_tokens": sum(map(piece_tokens, whole)) - sum(map(piece_tokens, last)),
    }
    short = [n for n in lengths if n < rule.min_tokens]
    dropped = [n for n in lengths if n >= rule.min_tokens and not rule.taken(n)]
    truncated = [n - rule.taken(n) for n in lengths if 0 < rule.taken(n) < n]
    for reason, counts in zip(REASONS, (short, dropped, truncated), strict=True):
        entry |= {f"{reason}_documents": len(counts), f"{reason}_tokens": sum(counts)}
    return entry


def manifest_of(
    stores: list[StoreData], pieces: list[Piece], parts: tuple[int, int], rule: Rule
) -> dict[str, Any]:
    stream_tokens = sum(map(piece_tokens, pieces))
    firsts = [piece for piece in pieces if piece["doc_start"] == 0]
    sources = [
        _segment_source(source, epochs, pieces, rule) for source, epochs in enumerate(rule.epochs)
    ]
    return {
        "format": schema.FORMAT,
        "version": 1,
        "dtype": "uint16",
        "tokenizer": stores[0].source["tokenizer"],
        "sources": [
            {
                "name": store.name,
                "store": f"store/{store.name}-{store.source['key'][:16]}",
                "documents": store.source["documents"],
                "tokens": store.source["tokens"],
                "rejected": store.source["rejected"],
            }
            for store in stores
        ],
        "workload": dict(model="quadratic", crossover=CROSSOVER, scale=SCALE, constant=CONSTANT),
        "micro_batch_order": "identity",
        "rows_per_group": ROWS_PER_GROUP,
        "segments": [
            {
                "first_step": 0,
                "steps": sum(parts),
                "first_part": 0,
                "parts": len(parts),
                "num_micro_batches": N,
                "context_length": S,
                "max_tokens": S_MAX,
                "max_pieces": MAX_PIECES,
                "intake_tokens": A,
                "max_displacement": MAX_DISPLACEMENT,
                "policy": "reorder",
                "thresholds": [],
                "seed": 5,
                "sources": sources,
                "stream_tokens": stream_tokens,
                "target_tokens": None,
                "at_source_end": "stop",
            }
        ],
        "totals": {
            "documents": sum(map(len, LENGTHS.values())),
            "tokens": sum(map(sum, LENGTHS.values())),
            "rejected": {"empty": 1},
            "stream_documents": len(firsts),
            "stream_tokens": stream_tokens,
            "stream_pieces": len(pieces),
            **{f"unselected_{unit}": sources[1][f"unselected_{unit}"] for unit in UNITS},
            **{
                f"{reason}_{unit}": sum(source[f"{reason}_{unit}"] for source in sources)
                for reason in REASONS
                for unit in UNITS
            },
            "cut_documents": sum(piece_tokens(piece) < piece["taken"] for piece in firsts),
        },
        "balance": {},
        "cp": {"2": {"strategy": "per_sequence", "kv_exchange": KV_EXCHANGE, "throughput": "flat"}},
        "config": {},
        "fingerprints": {},
    }
