"""Chains small enough to be built many times: documents of a few tokens, no CP plans."""

from __future__ import annotations

from collections import defaultdict
from fractions import Fraction
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from packer.passes import EarlierEpoch
from packer.stream import Stream
from pipeline.config import RunConfig
from pipeline.config_file import parse_config
from pipeline.planning.plan_parts import read_plan_part
from pipeline.shard.manifest import Manifest
from pipeline.shard.segment import Segment
from pipeline.shard.token_store import TokenStore
from tests import reference_stream as slow
from tests.corpora import EOS, texts_of_lengths, tiny_tokenizer, write_jsonl

LENGTHS = {
    "long": [3, 90, 7, 41, 2, 150, 5, 5, 64, 11, 2, 33, 9, 120, 4, 17],
    "short": [5, 8, 2, 3, 13, 4, 4, 21, 6, 2, 9, 10, 3, 3, 7],
    "late": [12, 70, 5, 3, 48, 2, 8],
}
Token = tuple[int, int, int, int]
"""source, epoch, doc_id, and its place in the document."""


def tiny_config(directory: Path, **tables: Any) -> RunConfig:
    """A run over some of `LENGTHS`; token stores are shared, below `directory`.

    Args:
        directory: where the corpora are, and the stores.
        tables: of the configuration; `sources` by name, with further settings each.
    """
    sources = []
    for name, settings in tables.pop("sources").items():
        path = directory / f"{name}.jsonl"
        if not path.exists():
            write_jsonl(path, texts_of_lengths(LENGTHS[name]))
        sources.append({"name": name, "paths": [str(path)], **settings})
    document = {
        "tokenizer": {"path": str(tiny_tokenizer()), "eos_token": EOS},
        "workload": {"crossover": 50},
        "shards": {"store": str(directory / "stores"), "shard_tokens": 150},
        "job": {"executor": "local"},
        "sources": sources,
    }
    return parse_config(document | tables, name="tiny chain")


def runs_of(manifest: Manifest, segments: int) -> dict[tuple[int, int, int], dict[int, int]]:
    """By source, epoch and document: tokens that the first segments ran, and which of them did."""
    found: dict[tuple[int, int, int], dict[int, int]] = defaultdict(dict)
    for number, segment in enumerate(manifest.segments[:segments]):
        for part in segment.part_numbers:
            pieces = read_plan_part(manifest.plan_path(part)).pieces
            columns = (pieces.source, pieces.epoch, pieces.doc_id, pieces.doc_start,
                       pieces.doc_stop)  # fmt: skip
            for *key, start, stop in zip(*(column.tolist() for column in columns), strict=True):
                tokens = found[tuple(key)]
                assert not tokens.keys() & range(start, stop), f"runs twice: {key}"
                tokens |= dict.fromkeys(range(start, stop), number)
    return dict(found)


def slow_pool(
    manifest: Manifest, segments: int, stores: list[TokenStore]
) -> dict[int, list[slow.SlowEpoch]]:
    """What the first segments left, token by token."""
    runs = runs_of(manifest, segments)
    pool: dict[int, list[slow.SlowEpoch]] = {}
    for source in {key[0] for key in runs}:
        reached = 1 + max(epoch for of, epoch, _ in runs if of == source)
        pool[source] = [slow.SlowEpoch(set(), [], 0) for _ in range(reached)]
    for (source, epoch, doc_id), tokens in sorted(runs.items()):
        first = manifest.segments[min(tokens.values())]
        length = min(int(stores[source].lengths[doc_id]), first.most_taken(source))
        entry = pool[source][epoch]
        entry.begun.add(doc_id)
        entry.run_tokens += len(tokens)
        left = [place for place in range(length) if place not in tokens]
        for place in left:
            if place - 1 in left:
                continue
            stop = next(n for n in range(place, length + 1) if n not in left)
            entry.left.append((doc_id, place, stop))
    return pool


def as_slow(epoch: EarlierEpoch, documents: int) -> slow.SlowEpoch:
    """What the packer gets, in the twin's words."""
    begun = {d for d in range(documents) if epoch.begun[d // 8] >> d % 8 & 1}
    columns = (epoch.doc_id, epoch.start, epoch.stop)
    left = list(zip(*(column.tolist() for column in columns), strict=True))
    return slow.SlowEpoch(begun, left, epoch.run_tokens)


def stream_of(manifest: Manifest, number: int) -> list[Token]:
    """A segment's stream as its rows and its tail have it."""
    segment, found = manifest.segments[number], []
    names = ("source", "epoch", "doc_id", "doc_start", "doc_stop", "position")
    for part in segment.part_numbers:
        pieces = read_plan_part(manifest.plan_path(part)).pieces
        found += list(zip(*(getattr(pieces, name).tolist() for name in names), strict=True))
    for row in pq.read_table(manifest.directory / "tail.parquet").to_pylist():
        if row["segment"] == number:
            found.append(tuple(row[name] for name in names))
    found.sort(key=lambda piece: piece[5])
    return [(*piece[:3], place) for piece in found for place in range(piece[3], piece[4])]


def slow_stream(
    segment: Segment,
    stream: Stream,
    stores: list[TokenStore],
    pool: dict[int, list[slow.SlowEpoch]],
) -> list[Token]:
    """A segment's stream from lengths, by the slow twin; `stream` gives the weights."""
    sources = [
        slow.SlowSource(
            stores[entry.source].lengths.tolist(),
            int(weight),
            Fraction(str(entry.max_epochs)),
            entry.min_tokens,
            entry.longer_than_context,
            pool.get(entry.source, []),
            entry.source,
        )
        for entry, weight in zip(segment.sources, stream.weights, strict=True)
    ]
    pieces = slow.stream(
        sources,
        seed=segment.seed,
        longest=segment.context_length,
        target=segment.target_tokens,
        stop=segment.at_source_end == "stop",
    )
    return [(*piece[:3], place) for piece in pieces for place in range(piece[3], piece[4])]
