"""Ranks of byte strings (a .tiktoken file) to a tokenizer.json that gives the same ids.

tiktoken merges the pair of neighbours whose union has the lowest rank; a tokenizer.json names the
two halves of each merge. The halves of a token are what its bytes are merged to by the ranks below
its own.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from itertools import pairwise
from typing import Any


def parse_ranks(content: bytes) -> dict[bytes, int]:
    """Ranks by bytes, from lines of base64 and rank."""
    pairs = (line.split() for line in content.splitlines() if line)
    return {base64.b64decode(token): int(rank) for token, rank in pairs}


def tokenizer_json(ranks: Mapping[bytes, int], pattern: str, special: Mapping[str, int]) -> str:
    """The vocabulary as the `tokenizers` library reads it.

    Args:
        ranks: id of each byte string; every single byte is there.
        pattern: words of a text, which are merged each by itself.
        special: ids of special tokens.
    """
    letters = _letters()
    names = {token: "".join(letters[byte] for byte in token) for token in ranks}
    merges = []
    for token, rank in sorted(ranks.items(), key=lambda item: item[1]):
        if len(token) > 1:
            left, right = _halves(token, rank, ranks)
            merges.append(f"{names[left]} {names[right]}")
    split = {
        "type": "Split",
        "pattern": {"Regex": pattern},
        "behavior": "Isolated",
        "invert": False,
    }
    bytes_to_letters = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": False,
        "use_regex": False,
    }
    flags = {
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "special": True,
    }
    document: dict[str, Any] = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": token_id, "content": content, **flags}
            for content, token_id in sorted(special.items(), key=lambda item: item[1])
        ],
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, bytes_to_letters]},
        "post_processor": None,
        "decoder": bytes_to_letters,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": True,
            "vocab": {names[token]: rank for token, rank in ranks.items()} | dict(special),
            "merges": merges,
        },
    }
    return json.dumps(document, ensure_ascii=False)


def _halves(token: bytes, rank: int, ranks: Mapping[bytes, int]) -> tuple[bytes, bytes]:
    parts = [token[place : place + 1] for place in range(len(token))]
    while len(parts) > 2:
        unions = [
            (ranks.get(left + right, rank), place)
            for place, (left, right) in enumerate(pairwise(parts))
        ]
        lowest, place = min(unions)
        if lowest >= rank:
            raise ValueError(f"the ranks do not merge {token!r}; this is no byte-pair encoding")
        parts[place : place + 2] = [parts[place] + parts[place + 1]]
    left, right = parts
    return left, right


def _letters() -> list[str]:
    """The printable character that stands for each byte: itself, or one from U+0100 on."""
    shown = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte if byte in shown else next(others)) for byte in range(256)]
