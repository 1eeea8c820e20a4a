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
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipeline.shard import schema
from tests.fixture_contents import LENGTHS, PARTS, ROWS_PER_GROUP, N, Piece, piece_tokens, store_of
from tests.fixture_files import (
    Columns,
    StoreData,
    sha256,
    write_indexes,
    write_manifest,
    write_store,
    write_table,
)
from tests.fixture_manifest import manifest_of
from tests.fixture_stream import Rule, make_stream, pack
from tests.fixture_tables import cp_columns, plan_columns, shard_columns, steps_columns


@dataclass
class SetData:
    """A set before it is written; `pieces` is the stream, in its order."""

    manifest: dict[str, Any]
    stores: list[StoreData]
    pieces: list[Piece]
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
        write_manifest(directory, self.manifest)


def make_set(longer_than_context: str = "cut", min_tokens: int = 1) -> SetData:
    """The set of this module's docstring."""
    stores = [store_of(name, index) for index, name in enumerate(LENGTHS)]
    rule = Rule(longer_than_context, min_tokens)
    pieces = make_stream(rule)
    rows, tail = pack(pieces, swap=longer_than_context == "cut")
    steps = len(rows) // N
    parts = PARTS if longer_than_context == "cut" else (1, steps - 1)
    assert sum(parts) == steps
    manifest = manifest_of(stores, pieces, parts, rule)
    data = SetData(manifest=manifest, stores=stores, pieces=pieces)
    first = 0
    for steps in parts:
        part = rows[first * N : (first + steps) * N]
        data.plan.append(plan_columns(part, first))
        data.shards.append(shard_columns(part, data.plan[-1]))
        data.cp.append(cp_columns(data.plan[-1]))
        first += steps
    data.steps = steps_columns(rows, parts)
    data.tail = {name: [piece[name] for piece in tail] for name in schema.TAIL.names[1:]}
    data.tail = {"segment": [0] * len(tail), **data.tail}
    data.manifest["totals"] |= {
        "steps": sum(parts),
        "placed_tokens": sum(data.steps["tokens"]),
        "targets": sum(data.steps["targets"]),
        "tail_pieces": len(tail),
        "tail_tokens": sum(piece_tokens(piece) for piece in tail),
    }
    return data


def first_and_extended(data: SetData) -> tuple[SetData, SetData]:
    """The set as it was when it had its first part alone, and as a chain that got a segment."""
    first, extended = copy.deepcopy(data), copy.deepcopy(data)
    for tables in (first.plan, first.shards, first.cp):
        del tables[1:]
    first.steps = {name: values[: PARTS[0]] for name, values in first.steps.items()}
    (segment,) = extended.manifest["segments"]
    begin = {"steps": PARTS[0], "parts": 1}
    more = {"first_step": PARTS[0], "steps": PARTS[1], "first_part": 1, "parts": 1}
    first.manifest["segments"] = [{**segment, **begin}]
    extended.manifest["segments"] = [{**segment, **begin}, {**segment, **more}]
    extended.steps["segment"] = [0] * PARTS[0] + [1] * PARTS[1]
    return first, extended
