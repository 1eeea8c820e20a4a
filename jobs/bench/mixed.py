"""A mixed corpus as JSONL: several languages, code and prose, short and long documents.

Its text is Debian's where apt is there, else that of the installed packages. Exact duplicates are
left out, and documents stand in the order of their digests: a shuffle that depends on nothing, so
that every head of the corpus is the same mix.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import BinaryIO

from jobs.bench import corpus, debian

FILES = 8
"""A corpus is cut into this many files of about one size, since some tools share out files."""
_LONGEST = 4_000_000
_SPECIAL = ("<|endoftext|>", "<|endofprompt|>")
"""Tools differ in what they make of a text that spells a special token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Corpus:
    """A corpus on disk: its files, what is in them, and a digest of them all."""

    files: tuple[str, ...]
    documents: int
    text_bytes: int
    sha256: str
    packages: dict[str, str]
    """Debian packages and their versions; empty where the text is of the installed packages."""


def write_mixed(directory: Path, *, megabytes: float, cache: Path) -> Corpus:
    """The head of the mixed corpus, of so many megabytes of text, as JSONL files.

    A record has `id`, `source` and `text`. What is there already is not made again.

    Args:
        directory: where the files go.
        megabytes: 10^6 bytes of UTF-8 text, at least.
        cache: where downloaded packages and the whole corpus are kept.

    Raises:
        ValueError: the corpus is smaller than that.
        RuntimeError: packages cannot be downloaded.
    """
    note = directory / "corpus.json"
    files = tuple(str(directory / f"{number:02}.jsonl") for number in range(FILES))
    if note.exists():
        return Corpus(files=files, **json.loads(note.read_text()))
    whole = cache / "mixed.jsonl"
    packages = debian.fetch(cache / "debian") if debian.available() else {}
    if not whole.exists():
        gather(debian.texts(cache / "debian") if packages else _installed(), whole)
    directory.mkdir(parents=True, exist_ok=True)
    written = _cut(whole, files, int(megabytes * 1e6), packages)
    kept = {key: value for key, value in asdict(written).items() if key != "files"}
    note.write_text(json.dumps(kept, indent=1))
    return written


def _installed() -> Iterator[tuple[str, str]]:
    return (("installed", text) for text in corpus.texts())


def gather(documents: Iterable[tuple[str, str]], whole: Path) -> None:
    """Write the distinct, usable ones of some documents, in the order of their digests.

    Args:
        documents: source and text of each.
        whole: a JSONL file; it is there when it is whole.
    """
    spool, temporary = whole.with_suffix(".spool"), whole.with_suffix(".tmp")
    whole.parent.mkdir(parents=True, exist_ok=True)
    with spool.open("wb") as file:
        lines = sorted(_spool(documents, file))
    with spool.open("rb") as file, temporary.open("wb") as ordered:
        for _, offset, size in lines:
            file.seek(offset)
            ordered.write(file.read(size))
    spool.unlink()
    os.replace(temporary, whole)


def _spool(documents: Iterable[tuple[str, str]], spool: BinaryIO) -> list[tuple[bytes, int, int]]:
    """Write the documents' lines as they come; digest, offset and bytes of each."""
    lines, seen, offset = [], set(), 0
    for source, text in documents:
        if not text.strip() or len(text) >= _LONGEST or any(word in text for word in _SPECIAL):
            continue
        digest = hashlib.sha256(text.encode()).digest()
        if digest in seen:
            continue
        seen.add(digest)
        record = {"id": digest.hex()[:16], "source": source, "text": text}
        line = json.dumps(record, ensure_ascii=False).encode() + b"\n"
        spool.write(line)
        lines.append((digest, offset, len(line)))
        offset += len(line)
    return lines


def _cut(whole: Path, files: tuple[str, ...], size: int, packages: dict[str, str]) -> Corpus:
    digest, sources = hashlib.sha256(), Counter()
    text_bytes = documents = 0
    with whole.open("rb") as lines, ExitStack() as stack:
        opened = [stack.enter_context(open(path, "wb")) for path in files]
        for line in lines:
            if text_bytes >= size:
                break
            opened[text_bytes * len(files) // size].write(line)
            digest.update(line)
            documents += 1
            record = json.loads(line)
            length = len(record["text"].encode())
            text_bytes += length
            sources[record["source"]] += length
    if text_bytes < size:
        raise ValueError(
            f"the mixed corpus holds {text_bytes / 1e6:.0f} MB of text, {size / 1e6:.0f} were "
            "asked for; ask for less"
        )
    for source, length in sorted(sources.items()):
        print(f"{source}: {length / 1e6:.1f} MB")
    print(f"{documents} documents, {text_bytes} bytes of text, SHA-256 {digest.hexdigest()}")
    return Corpus(
        files=files,
        documents=documents,
        text_bytes=text_bytes,
        sha256=digest.hexdigest(),
        packages=packages,
    )
