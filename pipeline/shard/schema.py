"""Names and types of everything on disk: docs/FORMAT.md in code.

Columns are in file order. Nothing here decides anything; writers and readers share it.
"""

from __future__ import annotations

import pyarrow as pa

FORMAT = "steelyard"
STORE_FORMAT = "steelyard-store"
VERSION = 1
NO_LABEL = -100
"""The label of a token without one: a document's last."""
BLOCK_BYTES = 65_536
"""Bytes of a token part that one digest covers."""
TOKENS = "tokens"
ABOUT = ("source", "epoch", "doc_id", "doc_start", "doc_stop", "position", "num_targets")
"""Columns of plan and shards that say what a micro-batch is; a rank can run it without them."""
TOKEN_TYPES = {"uint16": pa.uint16(), "uint32": pa.uint32()}

INPUTS = pa.schema({"path": pa.string(), "bytes": pa.int64(), "xxh3_128": pa.string()})
PARTS = pa.schema(
    {
        "part": pa.int64(),
        "first_doc_id": pa.int64(),
        "documents": pa.int64(),
        "tokens": pa.int64(),
        "file": pa.int64(),
        "first_record": pa.int64(),
        "tokens_sha256": pa.string(),
        "index_sha256": pa.string(),
        "blocks_sha256": pa.string(),
    }
)
PART_INDEX = pa.schema(
    {"offset": pa.int64(), "length": pa.int64(), "file": pa.int64(), "record": pa.int64()}
)
METADATA = "metadata"
"""The index's last column, in stores of sources that keep columns."""
PART_BLOCKS = pa.schema({"xxh3_128": pa.string()})
REJECTS = pa.schema(
    {"path": pa.string(), "record": pa.int64(), "reason": pa.string(), "detail": pa.string()}
)

PLAN = pa.schema(
    {
        "step": pa.int64(),
        "slot": pa.int32(),
        "cu_seqlens": pa.list_(pa.int32()),
        "source": pa.list_(pa.int32()),
        "epoch": pa.list_(pa.int32()),
        "doc_id": pa.list_(pa.int64()),
        "doc_start": pa.list_(pa.int64()),
        "doc_stop": pa.list_(pa.int64()),
        "position": pa.list_(pa.int64()),
        "num_targets": pa.int64(),
        "workload": pa.int64(),
    }
)


def shard_schema(dtype: str) -> pa.Schema:
    """The shards' columns for a token type, "uint16" or "uint32"."""
    return pa.schema(
        {
            "step": pa.int64(),
            "slot": pa.int32(),
            "tokens": pa.list_(TOKEN_TYPES[dtype]),
            "cu_seqlens": pa.list_(pa.int32()),
            "source": pa.list_(pa.int32()),
            "epoch": pa.list_(pa.int32()),
            "doc_id": pa.list_(pa.int64()),
            "doc_start": pa.list_(pa.int64()),
            "last_labels": pa.list_(pa.int64()),
            "num_targets": pa.int64(),
            "workload": pa.int64(),
        }
    )


CP_PLAN = pa.schema(
    {
        "step": pa.int64(),
        "slot": pa.int32(),
        "cp_rank": pa.list_(pa.int32()),
        "piece": pa.list_(pa.int32()),
        "start": pa.list_(pa.int32()),
        "stop": pa.list_(pa.int32()),
        "strategy": pa.string(),
        "predicted": pa.list_(pa.int64()),
        "considered": pa.list_(pa.int64()),
    }
)
STEPS = pa.schema(
    {
        "step": pa.int64(),
        "segment": pa.int32(),
        "part": pa.int32(),
        "tokens": pa.int64(),
        "targets": pa.int64(),
        "source_tokens": pa.list_(pa.int64()),
        "workload_max": pa.int64(),
        "workload_total": pa.int64(),
        "cumulative_tokens": pa.int64(),
        "cumulative_targets": pa.int64(),
    }
)
TAIL = pa.schema(
    {
        "segment": pa.int32(),
        "source": pa.int32(),
        "epoch": pa.int32(),
        "doc_id": pa.int64(),
        "doc_start": pa.int64(),
        "doc_stop": pa.int64(),
        "position": pa.int64(),
    }
)
FILES = pa.schema(
    {
        "path": pa.string(),
        "bytes": pa.int64(),
        "sha256": pa.string(),
        "content_sha256": pa.string(),
    }
)
ROW_GROUPS = pa.schema(
    {
        "path": pa.string(),
        "row_group": pa.int32(),
        "first_step": pa.int64(),
        "offset": pa.int64(),
        "length": pa.int64(),
        "xxh3_128": pa.string(),
    }
)
FOOTER = -1
"""`row_group` of a file's footer in row_groups.parquet."""


def part_index(*, metadata: bool) -> pa.Schema:
    """The columns of a part's index, with metadata or without."""
    return PART_INDEX.append(pa.field(METADATA, pa.string())) if metadata else PART_INDEX


def part_name(part: int) -> str:
    """The name of a numbered part, without an ending: at least five digits."""
    return f"{part:05d}"


def part_schema(path: str, dtype: str) -> pa.Schema:
    """The columns of a part file, by its path below the set's directory."""
    folder = path.partition("/")[0]
    if folder == "shards":
        return shard_schema(dtype)
    return PLAN if folder == "plan" else CP_PLAN
