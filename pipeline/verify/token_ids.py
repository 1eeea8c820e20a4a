"""Token ids of a store's part: in the vocabulary, with the ends that source.json speaks of."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.verify.result import VerifyError

_BLOCK_TOKENS = 1 << 20
ENDS = (None, "add", "as_given")
"""`ends` of source.json: none where the source was text, whose documents all have their ends."""


def check_ids(
    path: Path, tokens: np.ndarray, lengths: np.ndarray, identity: Mapping[str, Any]
) -> None:
    """Check every id of a part, and the first and last of each document.

    Args:
        path: the part's `.tokens`, for the message.
        tokens: its content, (tokens,).
        lengths: tokens of its documents, (documents,).
        identity: content of source.json.

    Raises:
        VerifyError: an id outside the vocabulary, or a document without tokens, or without an end
            that is promised.
    """
    tokenizer = identity["tokenizer"]
    for start in range(0, len(tokens), _BLOCK_TOKENS):
        block = tokens[start : start + _BLOCK_TOKENS]
        if block.max() >= tokenizer["vocab_size"]:
            place = start + int(block.argmax())
            raise VerifyError(
                f"token {place} is {tokens[place]}, but the vocabulary has "
                f"{tokenizer['vocab_size']} ids",
                path=path,
            )
    for document in np.flatnonzero(lengths == 0)[:1]:
        raise VerifyError(f"document {document} of the part has no tokens", path=path)
    if identity.get("ends") == "as_given":
        return
    stops = np.cumsum(lengths, dtype=np.int64)
    ends = (("begin", "bos_id", stops - lengths), ("end", "eos_id", stops - 1))
    for verb, name, places in ends:
        if tokenizer[name] is None:
            continue
        for document in np.flatnonzero(tokens[places] != tokenizer[name])[:1]:
            raise VerifyError(
                f"document {document} of the part does not {verb} with {name} {tokenizer[name]}, "
                "as source.json says",
                path=path,
            )
