"""The reference: text to ids and back by the `tokenizers` library."""

from __future__ import annotations

from array import array
from dataclasses import replace
from functools import lru_cache
from typing import Protocol

import numpy as np
import tokenizers
from tokenizers import Tokenizer

from pipeline.tokenizer.identity import TokenizerIdentity
from pipeline.tokenizer.vocabulary import load_reference


class Engine(Protocol):
    """Text to ids, in the calling process; adds no special tokens.

    `referred` counts the texts that a fast engine left to the reference, and
    `referred_characters` what is in them.
    """

    referred: int
    referred_characters: int

    def encode(self, texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
        """Encode documents.

        Returns:
            their ids back to back, of the identity's dtype, and how many each has, int64, (texts,).
        """
        ...

    def decode(self, ids: np.ndarray) -> str:
        """The text of ids, special tokens included; for people, not for reading back."""
        ...


class HuggingFaceEngine:
    """The reference: what the `tokenizers` library makes of a text is right."""

    version = tokenizers.__version__
    referred = 0
    referred_characters = 0

    def __init__(self, tokenizer: Tokenizer, dtype: np.dtype):
        self.tokenizer = tokenizer
        self._dtype = dtype
        self._typecode = {2: "H", 4: "I"}[dtype.itemsize]

    def encode(self, texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
        encodings = self.tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        # An array.array takes a list of ints three times as fast as numpy does.
        ids = [array(self._typecode, encoding.ids) for encoding in encodings]
        lengths = np.fromiter(map(len, ids), np.int64, count=len(ids))
        return np.frombuffer(b"".join(ids), self._dtype), lengths

    def decode(self, ids: np.ndarray) -> str:
        return self.tokenizer.decode(ids.tolist(), skip_special_tokens=False)


REFERENCE = "hf"


def reference_engine(identity: TokenizerIdentity) -> HuggingFaceEngine:
    """The reference for an identity, whatever its engine, loaded once a process.

    Raises:
        TokenizerError: as `load_reference`.
    """
    return _load(replace(identity, engine=REFERENCE, engine_version=HuggingFaceEngine.version))


@lru_cache(maxsize=8)
def _load(identity: TokenizerIdentity) -> HuggingFaceEngine:
    return HuggingFaceEngine(load_reference(identity), dtype_of(identity))


def dtype_of(identity: TokenizerIdentity) -> np.dtype:
    """The type of ids, little-endian."""
    return np.dtype(identity.dtype).newbyteorder("<")
