"""The slow twin of reading a Megatron dataset: plain Python, a field after the other, all at once.

By the format's description in megatron.core.datasets.indexed_dataset.
"""

from __future__ import annotations

import struct
from itertools import pairwise
from pathlib import Path

_CODES = {1: "B", 2: "b", 3: "h", 4: "i", 5: "q", 8: "H"}


def read_megatron(prefix: Path) -> list[list[int]]:
    """Every document's ids, from PREFIX.idx and PREFIX.bin."""
    content = Path(f"{prefix}.idx").read_bytes()
    assert content[:9] == b"MMIDIDX\0\0"
    version, code, sequences, indices = struct.unpack("<QBQQ", content[9:34])
    assert version == 1
    lengths = struct.unpack_from(f"<{sequences}i", content, 34)
    pointers = struct.unpack_from(f"<{sequences}q", content, 34 + 4 * sequences)
    bounds = struct.unpack_from(f"<{indices}q", content, 34 + 12 * sequences)
    ids = Path(f"{prefix}.bin").read_bytes()
    texts = [
        list(struct.unpack_from(f"<{length}{_CODES[code]}", ids, pointer))
        for length, pointer in zip(lengths, pointers, strict=True)
    ]
    return [
        [token for place in range(first, last) for token in texts[place]]
        for first, last in pairwise(bounds)
    ]


def write_megatron(
    prefix: Path, documents: list[list[list[int]]], code: int, modes: list[int] | None = None
) -> Path:
    """A pair with these documents, each a list of sequences; the path of the .idx."""
    texts = [text for document in documents for text in document]
    size = struct.calcsize(_CODES[code])
    pointers, bounds = [0], [0]
    for text in texts:
        pointers.append(pointers[-1] + size * len(text))
    for document in documents:
        bounds.append(bounds[-1] + len(document))
    head = b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, code, len(texts), len(bounds))
    tables = [
        struct.pack(f"<{len(texts)}i", *map(len, texts)),
        struct.pack(f"<{len(texts)}q", *pointers[:-1]),
        struct.pack(f"<{len(bounds)}q", *bounds),
        bytes(modes or []),
    ]
    index = Path(f"{prefix}.idx")
    index.write_bytes(head + b"".join(tables))
    ids = [struct.pack(f"<{len(text)}{_CODES[code]}", *text) for text in texts]
    Path(f"{prefix}.bin").write_bytes(b"".join(ids))
    return index
