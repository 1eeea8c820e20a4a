"""Text to ids and back."""

from __future__ import annotations

import hashlib
from array import array
from functools import lru_cache
from pathlib import Path
from typing import Protocol

import numpy as np
from tokenizers import Tokenizer

from pipeline.tokenizer.identity import NO_ENGINE, TokenizerError, TokenizerIdentity
from pipeline.tokenizer.locate import parse, read


class Engine(Protocol):
    """Text to ids, in the calling process; adds no special tokens."""

    def encode(self, texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
        """Encode documents.

        Returns:
            their ids back to back, of the identity's dtype, and how many each has, int64, (texts,).
        """
        ...

    def decode(self, ids: np.ndarray) -> str:
        """The text of ids, special tokens included; for people, not for reading back."""
        ...


class _HuggingFaceEngine:
    def __init__(self, tokenizer: Tokenizer, dtype: str):
        self._tokenizer = tokenizer
        self._dtype = np.dtype(dtype).newbyteorder("<")
        self._typecode = {2: "H", 4: "I"}[self._dtype.itemsize]

    def encode(self, texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
        encodings = self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        # An array.array takes a list of ints three times as fast as numpy does.
        ids = [array(self._typecode, encoding.ids) for encoding in encodings]
        lengths = np.fromiter(map(len, ids), np.int64, count=len(ids))
        return np.frombuffer(b"".join(ids), self._dtype), lengths

    def decode(self, ids: np.ndarray) -> str:
        return self._tokenizer.decode(ids.tolist(), skip_special_tokens=False)


@lru_cache(maxsize=8)
def load_engine(identity: TokenizerIdentity) -> Engine:
    """The engine for an identity, loaded once a process.

    Raises:
        TokenizerError: as `load_reference`.
    """
    return _HuggingFaceEngine(load_reference(identity), identity.dtype)


@lru_cache(maxsize=8)
def load_reference(identity: TokenizerIdentity) -> Tokenizer:
    """The library's tokenizer of an identity: it says what ids a text has. Loaded once a process.

    Raises:
        TokenizerError: the file is not the one the identity was made from, or text could forge the
            ids that mark a document's ends though it must not; or there is no vocabulary.
    """
    if identity.engine == NO_ENGINE:
        raise TokenizerError(
            "there is no vocabulary to encode or decode with: the configuration has "
            f"tokenizer.vocab_size = {identity.vocab_size} and no tokenizer.path"
        )
    path = Path(identity.path)
    content = read(path)
    found = hashlib.sha256(content).hexdigest()
    if found != identity.sha256:
        raise TokenizerError(
            f"{path} has SHA-256 {found} but {identity.sha256} was expected; every worker must see "
            "the vocabulary that the job started with"
        )
    tokenizer = parse(content, path)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    if identity.special_tokens_in_text == "text":
        tokenizer.encode_special_tokens = True
        _refuse_forgery(tokenizer, identity)
    return tokenizer


def decode(identity: TokenizerIdentity, ids: np.ndarray) -> str:
    """The text of a document's ids, or of a part of them, with special tokens as their strings."""
    return load_engine(identity).decode(ids)


def _refuse_forgery(tokenizer: Tokenizer, identity: TokenizerIdentity) -> None:
    for token_id in (identity.bos_id, identity.eos_id):
        if token_id is None:
            continue
        token = tokenizer.id_to_token(token_id)
        if token_id in tokenizer.encode(f"a {token} b", add_special_tokens=False).ids:
            raise TokenizerError(
                f"the text {token!r} would be encoded as id {token_id}, which marks a document's "
                "end, because the vocabulary does not call it special; choose another token or "
                'set tokenizer.special_tokens_in_text = "tokens"'
            )
