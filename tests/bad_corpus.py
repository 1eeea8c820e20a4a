"""A corpus of every bad record in every format that can hold it, and what must come of it.

Each file has good records before and after the bad ones; a good record's text is its file's name
and its record number, so that a shifted number shows.
"""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tests.corpora import write_bytes

MANY = tuple(range(100))
"""Enough good records that a compressed file has whole ones before it breaks off."""
JSONL_BAD = (
    b'{"text": "open',
    b"not json",
    b'["text"]',
    b"null",
    b"{}",
    b'{"text": null}',
    b'{"text": 3}',
    b'{"text": ""}',
    b'{"text": " \\n\\t\\u00a0"}',
    b'{"text": "\xff"}',
    b'{"text": "a\\ud800b"}',
    b'\xef\xbb\xbf{"text": "a mark is for the start"}',
)
JSONL_REASONS = {
    "bad_utf8": 2,
    "broken_json": 3,
    "empty_text": 2,
    "missing_text": 2,
    "not_an_object": 2,
    "text_not_string": 1,
}
TABLE_BAD = (None, "", " \n", b"\xff")
TABLE_REASONS = {"bad_utf8": 1, "empty_text": 2, "missing_text": 1}

EXPECTED: dict[str, tuple[list[int], dict[str, int]]] = {
    # file, by name: the record numbers of its documents, and its rejects by reason
    "bad.jsonl": ([0, 13], JSONL_REASONS),
    "bad.jsonl.bz2": ([0, 13], JSONL_REASONS),
    "bad.jsonl.gz": ([0, 13], JSONL_REASONS),
    "bad.jsonl.xz": ([0, 13], JSONL_REASONS),
    "bad.jsonl.zst": ([0, 13], JSONL_REASONS),
    "mark.jsonl": ([0, 1], {}),
    "utf16.jsonl": ([], {"utf16": 1}),
    "wrong_crc.jsonl.gz": ([*MANY], {"truncated": 1}),
    "bad.parquet": ([0, 5], TABLE_REASONS),
    "bad_file.arrow": ([0, 5], TABLE_REASONS),
    "bad_stream.arrow": ([0, 5], TABLE_REASONS),
    "bad_utf8.txt": ([], {"bad_utf8": 1}),
    "empty.txt": ([], {"empty_text": 1}),
    "good.txt": ([0], {}),
    "mark.txt": ([0], {}),
    "truncated.txt.gz": ([], {"truncated": 1}),
    "utf16.txt": ([], {"utf16": 1}),
    "white.txt": ([], {"empty_text": 1}),
}
TRUNCATED = ("short.jsonl.bz2", "short.jsonl.gz", "short.jsonl.xz")
"""Files that end early: some first documents, as many as could be read, and one reject each."""


def good(name: str, record: int) -> str:
    """The text of a good record."""
    return f"{name} {record} {random.Random(record).getrandbits(8000):x}"


FOLDERS = ("lines", "arrow", "tables", "tree")
"""Where the files lie, one format a folder."""


def write_bad_corpus(root: Path) -> Path:
    """Write the corpus; returns `root`."""
    for name in EXPECTED:
        if name.startswith("bad.jsonl"):
            lines = [_line(name, 0), *JSONL_BAD, _line(name, len(JSONL_BAD) + 1)]
            write_bytes(root / "lines" / name, b"\n".join(lines) + b"\n")
    _write_special_lines(root / "lines")
    _write_tables(root / "tables/bad.parquet", root / "arrow")
    _write_tree(root / "tree")
    return root


def _line(name: str, record: int) -> bytes:
    return json.dumps({"text": good(name, record)}).encode()


def _write_special_lines(root: Path) -> None:
    lines = [_line("mark.jsonl", record) for record in (0, 1)]
    write_bytes(root / "mark.jsonl", b"\xef\xbb\xbf" + b"\n".join(lines))
    write_bytes(root / "utf16.jsonl", b'{"text": "x"}\n'.decode().encode("utf-16") * 2)
    name = "wrong_crc.jsonl.gz"
    content = bytearray(
        gzip.compress(b"".join(_line(name, record) + b"\n" for record in MANY), mtime=0)
    )
    content[-8] ^= 1
    (root / name).write_bytes(content)
    for name in TRUNCATED:
        path = write_bytes(root / name, b"".join(_line(name, record) + b"\n" for record in MANY))
        content = path.read_bytes()
        path.write_bytes(content[: len(content) * 2 // 3])


def _write_tables(path: Path, arrow: Path) -> None:
    table = _table(path.name)
    path.parent.mkdir(parents=True, exist_ok=True)
    arrow.mkdir()
    pq.write_table(table, path, row_group_size=2)
    for kind, open_writer in (("file", pa.ipc.new_file), ("stream", pa.ipc.new_stream)):
        name = f"bad_{kind}.arrow"
        with open_writer(arrow / name, table.schema) as writer:
            writer.write_table(_table(name), max_chunksize=2)


def _table(name: str) -> pa.Table:
    texts = [good(name, 0), *TABLE_BAD, good(name, len(TABLE_BAD) + 1)]
    content = [text.encode() if isinstance(text, str) else text for text in texts]
    return pa.table({"text": pa.array(content, pa.binary()).view(pa.string())})


def _write_tree(tree: Path) -> None:
    write_bytes(tree / "good.txt", good("good.txt", 0).encode())
    write_bytes(tree / "mark.txt", b"\xef\xbb\xbf" + good("mark.txt", 0).encode())
    write_bytes(tree / "bad_utf8.txt", b"a \xff b")
    write_bytes(tree / "utf16.txt", "steelyard".encode("utf-16"))
    write_bytes(tree / "empty.txt", b"")
    write_bytes(tree / "white.txt", " \n\t\u00a0".encode())
    path = write_bytes(tree / "truncated.txt.gz", b"steelyard " * 40)
    path.write_bytes(path.read_bytes()[:-9])
