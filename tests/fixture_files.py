"""Writing a set's files from plain lists, by docs/FORMAT.md alone; see `tests.fixture_set`."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from pipeline.shard import schema

Columns = dict[str, list[Any]]


@dataclass
class StoreData:
    """A token store before it is written."""

    name: str
    source: dict[str, Any]
    documents: list[list[int]]
    parts: list[list[int]]
    """Tokens of each part's documents, back to back."""
    index: list[Columns]
    parts_table: Columns
    inputs: Columns
    rejects: Columns
    lengths: list[int]
    notes: Columns = field(default_factory=dict)
    """Of accepted documents; written where there are any."""


def write_store(store: StoreData, directory: Path) -> str:
    """Write a token store; the SHA-256 of its source.json."""
    (directory / "parts").mkdir(parents=True, exist_ok=True)
    digests: Columns = {name: [] for name in ("tokens_sha256", "index_sha256", "blocks_sha256")}
    for part, (tokens, index) in enumerate(zip(store.parts, store.index, strict=True)):
        base = directory / "parts" / schema.part_name(part)
        data = np.array(tokens, "<u2").tobytes()
        base.with_suffix(".tokens").write_bytes(data)
        blocks = [data[i : i + 65_536] for i in range(0, len(data), 65_536)]
        table = {"xxh3_128": [xxhash.xxh3_128_hexdigest(block) for block in blocks]}
        write_table(base.with_suffix(".blocks.parquet"), table, schema.PART_BLOCKS)
        layout = schema.part_index(metadata="metadata" in index)
        write_table(base.with_suffix(".index.parquet"), index, layout)
        for name in digests:
            ending = {"tokens_sha256": ".tokens"}.get(name, f".{name.split('_')[0]}.parquet")
            digests[name].append(sha256(base.with_suffix(ending)))
    (directory / "lengths.u32").write_bytes(np.array(store.lengths, "<u4").tobytes())
    write_table(directory / "parts.parquet", {**store.parts_table, **digests}, schema.PARTS)
    write_table(directory / "inputs.parquet", store.inputs, schema.INPUTS)
    write_table(directory / "rejects.parquet", store.rejects, schema.REJECTS)
    names = ["inputs.parquet", "parts.parquet", "lengths.u32", "rejects.parquet"]
    if store.notes:
        write_table(directory / "notes.parquet", store.notes, schema.REJECTS)
        names.append("notes.parquet")
    store.source["digests"] = {name: sha256(directory / name) for name in names}
    (directory / "source.json").write_text(json.dumps(store.source), encoding="utf-8")
    return sha256(directory / "source.json")


def write_table(path: Path, columns: Columns, layout: pa.Schema, rows: int | None = None) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    table = pa.table({name: columns[name] for name in layout.names}, schema=layout)
    pq.write_table(table, path, row_group_size=rows, compression="zstd", use_dictionary=False)


def read_table(path: Path) -> pa.Table:
    with pq.ParquetFile(path) as file:
        return file.read(use_threads=False)


def write_indexes(directory: Path, parts: list[str]) -> None:
    """files.parquet and row_groups.parquet over the files that lie in the directory."""
    files: Columns = {name: [] for name in schema.FILES.names}
    groups: Columns = {name: [] for name in schema.ROW_GROUPS.names}
    for path in [*parts, "steps.parquet", "tail.parquet"]:
        data = (directory / path).read_bytes()
        content = content_digest(directory / path) if path in parts else None
        values = (path, len(data), hashlib.sha256(data).hexdigest(), content)
        for name, value in zip(files, values, strict=True):
            files[name].append(value)
        if path not in parts:
            continue
        steps = read_table(directory / path).column("step").to_pylist()
        for group, row, offset, length in byte_ranges(directory / path):
            digest = xxhash.xxh3_128_hexdigest(data[offset : offset + length])
            values = (path, group, steps[row], offset, length, digest)
            for name, value in zip(groups, values, strict=True):
                groups[name].append(value)
    write_table(directory / "files.parquet", files, schema.FILES)
    write_table(directory / "row_groups.parquet", groups, schema.ROW_GROUPS)


def write_manifest(directory: Path, manifest: dict[str, Any]) -> None:
    text = json.dumps(manifest, indent=1)
    (directory / "manifest.json").write_text(text, encoding="utf-8")
    (directory / "manifest.sha256").write_text(sha256(directory / "manifest.json") + "\n")


def byte_ranges(path: Path) -> list[tuple[int, int, int, int]]:
    """(row group, its first row, offset, length) of each row group, and last of the footer."""
    metadata = pq.read_metadata(path)
    ranges, row, end = [], 0, 4
    for group in range(metadata.num_row_groups):
        row_group = metadata.row_group(group)
        columns = [row_group.column(i) for i in range(row_group.num_columns)]
        length = sum(column.total_compressed_size for column in columns)
        assert min(column.data_page_offset for column in columns) == end
        ranges.append((group, row, end, length))
        row, end = row + row_group.num_rows, end + length
    return [*ranges, (schema.FOOTER, 0, end, path.stat().st_size - end)]


def content_digest(path: Path) -> str:
    """FORMAT.md, section 5, word for word."""
    digest = hashlib.sha256()
    table = read_table(path)
    for column in table.columns:
        values = column.to_pylist()
        if pa.types.is_string(column.type):
            values = [list(value.encode()) for value in values]
        if isinstance(values[0], list):
            digest.update(np.cumsum([0, *map(len, values)]).astype("<i8").tobytes())
            values = [value for row in values for value in row]
        kind = column.type.value_type if pa.types.is_list(column.type) else column.type
        numpy_type = "u1" if pa.types.is_string(kind) else kind.to_pandas_dtype()
        digest.update(np.array(values, numpy_type).tobytes())
    return digest.hexdigest()


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
