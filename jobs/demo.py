"""The demo's corpus: the Python standard library, which every machine has.

Two sources in the formats that corpora come in. `code` is a document a module: the library as
Parquet, its tests as JSONL. `docs` is documentation: docstrings as compressed JSONL, the language
reference's topics as a tree of text files.
"""

from __future__ import annotations

import ast
import gzip
import json
import pydoc_data.topics
import sys
import sysconfig
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import zstandard

_ROWS_PER_GROUP = 64


def write_corpus(directory: Path) -> None:
    """Write the corpus; a file that is there is written again, the same."""
    modules = dict(_modules())
    library = {name: text for name, text in modules.items() if not name.startswith("test/")}
    tests = {name: text for name, text in modules.items() if name.startswith("test/")}
    code, docs = directory / "code", directory / "docs"
    (docs / "topics").mkdir(parents=True, exist_ok=True)
    code.mkdir(parents=True, exist_ok=True)

    table = pa.table({"path": list(library), "text": list(library.values())})
    pq.write_table(table, code / "library.parquet", row_group_size=_ROWS_PER_GROUP)
    (code / "tests.jsonl").write_bytes(_jsonl(tests))

    entries = [(name, text) for module in library.items() for name, text in _docstrings(*module)]
    half = len(entries) // 2
    (docs / "docstrings-0.jsonl.gz").write_bytes(
        gzip.compress(_jsonl(dict(entries[:half])), mtime=0)
    )
    compressor = zstandard.ZstdCompressor()
    (docs / "docstrings-1.jsonl.zst").write_bytes(compressor.compress(_jsonl(dict(entries[half:]))))
    for name, text in pydoc_data.topics.topics.items():
        (docs / "topics" / f"{name}.txt").write_text(text, encoding="utf-8")


def _modules() -> Iterator[tuple[str, str]]:
    """Relative path and text of the standard library's modules, in byte order of path."""
    root = Path(sysconfig.get_paths()["stdlib"])
    paths = [path.relative_to(root) for path in root.rglob("*.py")]
    for path in sorted(paths, key=lambda path: path.as_posix().encode()):
        if {"site-packages", "dist-packages", "lib2to3"} & set(path.parts):
            continue
        text = (root / path).read_bytes().decode("utf-8", errors="replace")
        if text.strip():
            yield path.as_posix(), text


def _docstrings(name: str, text: str) -> Iterator[tuple[str, str]]:
    """The docstrings of a module, its classes and functions, by dotted name."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            docstring = ast.get_docstring(node)
            if docstring:
                yield f"{name}:{getattr(node, 'lineno', 0)}", docstring


def _jsonl(texts: dict[str, str]) -> bytes:
    lines = [
        json.dumps({"id": name, "text": text}, ensure_ascii=False) for name, text in texts.items()
    ]
    return "".join(f"{line}\n" for line in lines).encode("utf-8", errors="replace")


def main(arguments: Sequence[str] | None = None) -> None:
    """`python -m jobs.demo DIR`."""
    (directory,) = sys.argv[1:] if arguments is None else arguments
    write_corpus(Path(directory))


if __name__ == "__main__":
    main()
