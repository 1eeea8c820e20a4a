"""splintr with a given vocabulary; for the regular expressions that it was checked with."""

from __future__ import annotations

import base64
import importlib
import importlib.metadata
import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from pipeline.tokenizer import patterns
from pipeline.tokenizer.identity import EngineUnavailable
from pipeline.tokenizer.referral import Encoder, Test, holds_character, is_panic
from pipeline.tokenizer.vocabulary import ByteLevelBPE

CHECKED_VERSION = "0.22.0"
CHECKED: dict[tuple[str, ...], str] = {
    (patterns.GPT2,): "",
    (patterns.CL100K,): "",
    (patterns.O200K,): "",
    (patterns.LLAMA3,): "",
    (patterns.QWEN2,): "",
    (patterns.TEKKEN,): "",
    patterns.DEEPSEEK: "\u3040\u3097\u3098\u309b\u309c\u30a0\u30fb",
}
"""How text may be cut, and the characters at which this version cuts otherwise."""
_TEXT_END = r"\z"
"""Where the reference has this, splintr has $; with both spellings its speed is not the same, nor
are its tables of characters."""


class _SplintrEncoder:
    def __init__(self, tokenizer: Any, ids: np.ndarray | None):
        self._encode = tokenizer.encode_batch_flat
        self._ids = ids

    def encode(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        try:
            flat, bounds = self._encode(texts)
        except BaseException as error:
            if not is_panic(error):
                raise
            return self._one_by_one(texts)
        ids = np.frombuffer(flat, "<u4")
        lengths = np.diff(np.frombuffer(bounds, "<u8").astype(np.int64))
        return (ids if self._ids is None else self._ids[ids]), lengths

    def _one_by_one(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        if len(texts) <= 1:
            return np.zeros(0, np.uint32), np.full(len(texts), -1, np.int64)
        ids, lengths = zip(*(self.encode([text]) for text in texts), strict=True)
        return np.concatenate(ids), np.concatenate(lengths)


def version() -> str:
    """The version of splintr, when it is the one that was checked.

    Raises:
        EngineUnavailable: none, or another.
    """
    try:
        found = importlib.metadata.version("splintr-rs")
    except importlib.metadata.PackageNotFoundError as error:
        raise EngineUnavailable("not installed") from error
    if found != CHECKED_VERSION:
        raise EngineUnavailable(f"{found} is installed, {CHECKED_VERSION} was checked")
    return found


def build(description: ByteLevelBPE) -> tuple[Encoder, list[Test]]:
    """Build splintr for a vocabulary; also the tests of texts that are not for it.

    Raises:
        EngineUnavailable: it cannot read the vocabulary, or was not checked with the way it cuts.
    """
    differing = CHECKED.get(description.splits)
    if differing is None or (description.rank_file is None and _TEXT_END in description.splits[-1]):
        raise EngineUnavailable("it was not checked with how this vocabulary cuts text")
    try:
        library: Any = importlib.import_module("splintr")
        if description.rank_file is not None:
            encoder = _from_ranks(library, description)
        else:
            encoder = _SplintrEncoder(library.from_json_bytes(_plain_json(description)), None)
    except BaseException as error:
        if isinstance(error, ValueError | ImportError) or is_panic(error):
            raise EngineUnavailable(f"it cannot read the vocabulary: {error}") from error
        raise
    return encoder, [holds_character(differing)] if differing else []


def _from_ranks(library: Any, description: ByteLevelBPE) -> Encoder:
    ranks = description.ranks()
    lines = [b"%s %d\n" % (base64.b64encode(token), rank) for token, rank in ranks.ranks.items()]
    pattern = description.splits[0].replace(_TEXT_END, "$")
    tokenizer = library.Tokenizer.from_bytes(b"".join(lines), pattern)
    return _SplintrEncoder(tokenizer, ranks.ids.astype(np.uint32))


def _plain_json(description: ByteLevelBPE) -> bytes:
    """The tokenizer.json without what only the reference does."""
    content = description.content or {}
    kept = {name: content.get(name) for name in ("version", "model", "pre_tokenizer", "decoder")}
    return json.dumps(
        {**kept, "added_tokens": [], "normalizer": None, "post_processor": None}
    ).encode()
