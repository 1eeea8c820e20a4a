"""A small, whole, valid set, written from docs/FORMAT.md with pyarrow, numpy and hashlib alone.

No code of the project is used but the names in `pipeline.shard.schema`, so what reads a set can be
tested without trusting what writes one. Everything is kept as plain Python lists; a test may change
any of it and then `write`, which computes every digest from what stands there: a set that is
consistent on its face, and wrong.

Two sources. `books` has five documents, read in two epochs, longer than S = 16 and so cut; `web`
has short ones, and one of 40,000 tokens (two digest blocks) that the stream does not reach. N = 2,
S_max = 20, A = 32, eight steps in two parts, CP degree 2. Where long documents are truncated or
dropped, `books` is read in four epochs.
"""

from __future__ import annotations

import copy
import hashlib
import itertools
import json
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.shard import schema
from tests.fixture_files import Columns, StoreData, sha256, write_indexes, write_store, write_table

S, S_MAX, N, A, MAX_PIECES, MAX_DISPLACEMENT = 16, 20, 2, 32, 9, 3
CROSSOVER, SCALE, CONSTANT, KV_EXCHANGE = 24, 256, 512, 0.25
PARTS = (5, 3)
"""Steps of each part, where long documents are cut."""
ROWS_PER_GROUP = 4
LENGTHS = {"books": [40, 9, 16, 33, 4], "web": [5, 12, 1, 7, 3, 16, 8, 2, 40_000, 6]}
STORE_PARTS = {"books": [3, 2], "web": [10]}
"""Documents of each part of a token store."""
VOCABULARY = 50_000
REASONS, UNITS = ("too_short", "too_long", "truncated"), ("documents", "tokens")


@cache
def document_tokens(source: int, doc_id: int, length: int) -> tuple[int, ...]:
    """The ids of a document, unlike those of any other."""
    return tuple((source * 20_011 + doc_id * 1_009 + i * 7 + 1) % VOCABULARY for i in range(length))


@dataclass
class SetData:
    """A set before it is written; `pieces` is the stream, in its order."""

    manifest: dict[str, Any]
    stores: list[StoreData]
    pieces: list[dict[str, int]]
    plan: list[Columns] = field(default_factory=list)
    shards: list[Columns] = field(default_factory=list)
    cp: list[Columns] = field(default_factory=list)
    steps: Columns = field(default_factory=dict)
    tail: Columns = field(default_factory=dict)

    def write(self, directory: Path) -> Path:
        """Write all of it with the digests that it has now."""
        directory.mkdir(parents=True, exist_ok=True)
        for source, store in zip(self.manifest["sources"], self.stores, strict=True):
            source["store_sha256"] = write_store(store, directory / source["store"])
        files = []
        for folder, tables, columns in (
            ("plan", self.plan, schema.PLAN),
            ("shards", self.shards, schema.shard_schema(self.manifest["dtype"])),
            ("cp=2", self.cp, schema.CP_PLAN),
        ):
            for part, table in enumerate(tables):
                path = f"{folder}/{schema.part_name(part)}.parquet"
                write_table(directory / path, table, columns, rows=ROWS_PER_GROUP)
                files.append(path)
        write_table(directory / "steps.parquet", self.steps, schema.STEPS)
        write_table(directory / "tail.parquet", self.tail, schema.TAIL)
        write_indexes(directory, files)
        self.write_manifest(directory)
        return directory

    def write_manifest(self, directory: Path) -> None:
        """Write manifest.json over the indexes that lie in the directory."""
        names = ("files.parquet", "row_groups.parquet")
        self.manifest["digests"] = {name: sha256(directory / name) for name in names}
        text = json.dumps(self.manifest, indent=1)
        (directory / "manifest.json").write_text(text, encoding="utf-8")
        (directory / "manifest.sha256").write_text(sha256(directory / "manifest.json") + "\n")


def make_set(longer_than_context: str = "cut", min_tokens: int = 1) -> SetData:
    """The set of this module's docstring."""
    stores = [_store(name, index) for index, name in enumerate(LENGTHS)]
    rule = Rule(longer_than_context, min_tokens)
    pieces = _stream(rule)
    rows, tail = _pack(pieces, swap=longer_than_context == "cut")
    steps = len(rows) // N
    parts = PARTS if longer_than_context == "cut" else (1, steps - 1)
    assert sum(parts) == steps
    manifest = _manifest(stores, pieces, parts, rule)
    data = SetData(manifest=manifest, stores=stores, pieces=pieces)
    first = 0
    for steps in parts:
        part = rows[first * N : (first + steps) * N]
        data.plan.append(_plan_columns(part, first))
        data.shards.append(_shard_columns(part, data.plan[-1]))
        data.cp.append(_cp_columns(data.plan[-1]))
        first += steps
    data.steps = _steps_columns(rows, parts)
    data.tail = {name: [piece[name] for piece in tail] for name in schema.TAIL.names[1:]}
    data.tail = {"segment": [0] * len(tail), **data.tail}
    data.manifest["totals"] |= {
        "steps": sum(parts),
        "placed_tokens": sum(data.steps["tokens"]),
        "targets": sum(data.steps["targets"]),
        "tail_pieces": len(tail),
        "tail_tokens": sum(_tokens(piece) for piece in tail),
    }
    return data


@dataclass(frozen=True)
class Rule:
    """Which documents a pass takes, and what of long ones."""

    longer_than_context: str
    min_tokens: int

    @property
    def epochs(self) -> tuple[int, int]:
        """Of books and web."""
        return (2, 1) if self.longer_than_context == "cut" else (4, 1)

    @property
    def weights(self) -> tuple[float, float]:
        """Of books and web, such that the stream keeps to them."""
        return (3.0, 1.0) if self.longer_than_context == "drop" else (0.8, 0.2)

    def taken(self, length: int) -> int:
        if length < self.min_tokens:
            return 0
        if length <= S or self.longer_than_context == "cut":
            return length
        return S if self.longer_than_context == "truncate" else 0


def length_of(piece: dict[str, int]) -> int:
    """Tokens of the whole document of a piece."""
    return list(LENGTHS.values())[piece["source"]][piece["doc_id"]]


def workload_of(pieces: list[dict[str, int]]) -> int:
    return CONSTANT + sum(piece_workload(_tokens(piece)) for piece in pieces)


def piece_workload(d: int) -> int:
    return ((d * CROSSOVER + d * d) * SCALE + CROSSOVER // 2) // CROSSOVER


def _tokens(piece: dict[str, int]) -> int:
    return piece["doc_stop"] - piece["doc_start"]


def _cut(source: int, epoch: int, documents: range, rule: Rule) -> list[dict[str, int]]:
    lengths = [rule.taken(length) for length in list(LENGTHS.values())[source]]
    return [
        {
            "source": source,
            "epoch": epoch,
            "doc_id": doc_id,
            "doc_start": start,
            "doc_stop": min(start + S, lengths[doc_id]),
            "taken": lengths[doc_id],
        }
        for doc_id in documents
        for start in range(0, lengths[doc_id], S)
    ]


def _stream(rule: Rule) -> list[dict[str, int]]:
    """Pieces shuffled inside each epoch, web's dealt in between those of books."""
    shuffle = random.Random(5)
    books = []
    for epoch in range(rule.epochs[0]):
        pieces = _cut(0, epoch, range(5), rule)
        shuffle.shuffle(pieces)
        books += pieces
    reached = [doc_id for doc_id in range(10) if rule.longer_than_context != "cut" or doc_id != 8]
    web = [piece for piece in _cut(1, 0, range(10), rule) if piece["doc_id"] in reached]
    shuffle.shuffle(web)
    stream = []
    for index, piece in enumerate(books):
        stream += [piece, *web[index // 2 : index // 2 + index % 2]]
    position = 0
    for piece in stream:
        piece["position"] = position
        position += _tokens(piece)
    return stream


def _pack(
    pieces: list[dict[str, int]], *, swap: bool
) -> tuple[list[list[dict[str, int]]], list[dict[str, int]]]:
    """Next fit, then two pieces of steps 0 and 1 may change places, so that one is displaced."""
    rows: list[list[dict[str, int]]] = []
    rest = list(pieces)
    while sum(map(_tokens, rest)) >= A and len(rest) >= N:
        for _ in range(N):
            row = [rest.pop(0)]
            while rest and sum(map(_tokens, row)) + _tokens(rest[0]) <= S_MAX:
                row.append(rest.pop(0))
            rows.append(row)
    if swap:
        _swap(rows[:N], rows[N : 2 * N])
    ordered = []
    for first in range(0, len(rows), N):
        step = rows[first : first + N]
        ordered += sorted(step, key=lambda row: (-workload_of(row), row[0]["position"]))
    return ordered, rest


def _swap(left: list[list[dict[str, int]]], right: list[list[dict[str, int]]]) -> None:
    """Exchange the first two pieces of different lengths whose rows have room for it."""
    for a, b in itertools.product(left, right):
        for i, j in itertools.product(range(len(a)), range(len(b))):
            more = _tokens(b[j]) - _tokens(a[i])
            if more and max(sum(map(_tokens, a)) + more, sum(map(_tokens, b)) - more) <= S_MAX:
                a[i], b[j] = b[j], a[i]
                for row in (a, b):
                    row.sort(key=lambda piece: piece["position"])
                return
    raise AssertionError("no two pieces can change places; choose another seed")


def _plan_columns(rows: list[list[dict[str, int]]], first_step: int) -> Columns:
    columns: Columns = {
        "step": [first_step + index // N for index in range(len(rows))],
        "slot": [index % N for index in range(len(rows))],
        "cu_seqlens": [np.cumsum([0, *map(_tokens, row)]).tolist() for row in rows],
    }
    for name in ("source", "epoch", "doc_id", "doc_start", "doc_stop", "position"):
        columns[name] = [[piece[name] for piece in row] for row in rows]
    columns["num_targets"] = [
        sum(_tokens(piece) - (piece["doc_stop"] == piece["taken"]) for piece in row) for row in rows
    ]
    columns["workload"] = [workload_of(row) for row in rows]
    return columns


def _shard_columns(rows: list[list[dict[str, int]]], plan: Columns) -> Columns:
    tokens, last_labels = [], []
    for row in rows:
        ids, last = [], []
        for piece in row:
            document = document_tokens(piece["source"], piece["doc_id"], piece["taken"])
            ids += document[piece["doc_start"] : piece["doc_stop"]]
            last += [*document[piece["doc_stop"] : piece["doc_stop"] + 1], schema.NO_LABEL][:1]
        tokens.append(ids)
        last_labels.append(last)
    columns = {**copy.deepcopy(plan), "tokens": tokens, "last_labels": last_labels}
    return {name: columns[name] for name in schema.shard_schema("uint16").names}


def _cp_columns(plan: Columns) -> Columns:
    """Head-tail over the whole sequence: rank 0 takes the first and last quarter."""
    columns: Columns = {name: [] for name in schema.CP_PLAN.names}
    columns["step"], columns["slot"] = list(plan["step"]), list(plan["slot"])
    for cu_seqlens in plan["cu_seqlens"]:
        total = cu_seqlens[-1]
        rank_of = [int(total // 4 <= i < total // 4 + total // 2) for i in range(total)]
        chunks = []
        for piece, (first, stop) in enumerate(itertools.pairwise(cu_seqlens)):
            for i in range(first, stop):
                if i > first and rank_of[i] == rank_of[i - 1]:
                    chunks[-1][3] += 1
                else:
                    chunks.append([rank_of[i], piece, i - first, i - first + 1])
        chunks.sort()
        for place, name in enumerate(("cp_rank", "piece", "start", "stop")):
            columns[name].append([chunk[place] for chunk in chunks])
        columns["strategy"].append("per_sequence")
        columns["predicted"].append(predicted_work(chunks))
        columns["considered"].append([])
    return columns


def predicted_work(chunks: Iterable[Sequence[int]]) -> list[int]:
    """Of both CP ranks, from (cp_rank, piece, start, stop); no piece is longer than a tile."""
    work = []
    for rank in range(2):
        mine = [(piece, start, stop) for of, piece, start, stop in chunks if of == rank]
        real = [(piece, start, stop) for piece, start, stop in mine if piece >= 0]
        reach = {piece: stop for piece, _, stop in real}
        received = sum(reach.values()) - sum(stop - start for _, start, stop in real)
        work.append(
            SCALE * sum(stop - start for _, start, stop in mine)
            + (2 * SCALE * 128 * 128 * len(real) + CROSSOVER // 2) // CROSSOVER
            + int(SCALE * KV_EXCHANGE) * received
        )
    return work


def _steps_columns(rows: list[list[dict[str, int]]], numbers: tuple[int, int]) -> Columns:
    columns: Columns = {name: [] for name in schema.STEPS.names}
    parts = [part for part, steps in enumerate(numbers) for _ in range(steps)]
    for step, part in enumerate(parts):
        step_rows = rows[step * N : (step + 1) * N]
        pieces = [piece for row in step_rows for piece in row]
        work = [workload_of(row) for row in step_rows]
        targets = sum(_tokens(p) - (p["doc_stop"] == p["taken"]) for p in pieces)
        values = {
            "step": step,
            "segment": 0,
            "part": part,
            "tokens": sum(map(_tokens, pieces)),
            "targets": targets,
            "source_tokens": [
                sum(_tokens(piece) for piece in pieces if piece["source"] == source)
                for source in range(len(LENGTHS))
            ],
            "workload_max": max(work),
            "workload_total": sum(work),
        }
        values["cumulative_tokens"] = sum(columns["tokens"]) + values["tokens"]
        values["cumulative_targets"] = sum(columns["targets"]) + values["targets"]
        for name, value in values.items():
            columns[name].append(value)
    return columns


def _store(name: str, source: int) -> StoreData:
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
                "record": list(range(count)),
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
        rejects = {"path": ["a.jsonl"], "record": [3], "reason": ["empty"], "detail": [""]}
    return StoreData(name, identity, documents, parts, index, table, inputs, rejects, list(lengths))


def _segment_source(
    source: int, max_epochs: int, pieces: list[dict[str, int]], rule: Rule
) -> dict[str, Any]:
    lengths = list(LENGTHS.values())[source]
    mine = [piece for piece in pieces if piece["source"] == source]
    last = [piece for piece in mine if piece["epoch"] == max_epochs - 1]
    whole = _cut(source, 0, range(len(lengths)), rule)
    entry: dict[str, Any] = {
        "source": source,
        "weight": rule.weights[source],
        "max_epochs": max_epochs,
        "longer_than_context": rule.longer_than_context,
        "min_tokens": rule.min_tokens,
        "passes": max_epochs,
        "tokens": sum(map(_tokens, mine)),
        "unselected_documents": len({p["doc_id"] for p in whole} - {p["doc_id"] for p in last}),
        "unselected_pieces": len(whole) - len(last),
        "unselected_tokens": sum(map(_tokens, whole)) - sum(map(_tokens, last)),
    }
    short = [n for n in lengths if n < rule.min_tokens]
    dropped = [n for n in lengths if n >= rule.min_tokens and not rule.taken(n)]
    truncated = [n - rule.taken(n) for n in lengths if 0 < rule.taken(n) < n]
    for reason, counts in zip(REASONS, (short, dropped, truncated), strict=True):
        entry |= {f"{reason}_documents": len(counts), f"{reason}_tokens": sum(counts)}
    return entry


def _manifest(
    stores: list[StoreData], pieces: list[dict[str, int]], parts: tuple[int, int], rule: Rule
) -> dict[str, Any]:
    stream_tokens = sum(map(_tokens, pieces))
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
            "cut_documents": sum(_tokens(piece) < piece["taken"] for piece in firsts),
        },
        "balance": {},
        "cp": {"2": {"strategy": "per_sequence", "kv_exchange": KV_EXCHANGE, "throughput": "flat"}},
        "config": {},
        "fingerprints": {},
    }
