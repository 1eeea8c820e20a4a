"""Documents of any length to ids, in bounded memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from pipeline.tokenizer.cuts import PART_CHARACTERS, Cutter
from pipeline.tokenizer.engine import load_engine
from pipeline.tokenizer.identity import TokenizerIdentity
from pipeline.tokenizer.reference import Engine, reference_engine

MAX_UNBROKEN_BYTES = 1 << 23
"""Longest text in UTF-8 without a safe place to cut that is encoded: 90 bytes of memory a byte."""
_CALL_CHARACTERS = 1 << 18
"""What one call of the engine gets, or one longer part; each takes some 80 bytes of memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedDocuments:
    """Ids of documents back to back, how many each has, int64 (documents,), and the refused.

    `unbroken` has the UTF-8 bytes of a refused document's longest part by its place; such a
    document has no ids.
    """

    ids: np.ndarray
    lengths: np.ndarray
    unbroken: dict[int, int]


class DocumentEncoder:
    """Encodes documents with an engine: long ones in parts, few characters a call.

    Args:
        engine: what encodes.
        load_cutter: called when the first long text comes; it may have to load the reference.
    """

    def __init__(self, engine: Engine, load_cutter: Callable[[], Cutter]) -> None:
        self._engine = engine
        self._load_cutter = load_cutter

    @cached_property
    def _cutter(self) -> Cutter:
        return self._load_cutter()

    def encode(self, texts: Sequence[str]) -> EncodedDocuments:
        """Encode documents; adds no special tokens."""
        parts: list[str] = []
        owners: list[int] = []
        unbroken: dict[int, int] = {}
        for place, text in enumerate(texts):
            pieces = self._cutter.parts(text) if len(text) > PART_CHARACTERS else [text]
            longest = max(map(_utf8_bytes, pieces))
            if longest > MAX_UNBROKEN_BYTES:
                unbroken[place] = longest
                continue
            parts += pieces
            owners += [place] * len(pieces)
        calls = [self._engine.encode(call) for call in _calls(parts)] or [self._engine.encode([])]
        ids, part_lengths = (np.concatenate(arrays) for arrays in zip(*calls, strict=True))
        lengths = np.zeros(len(texts), np.int64)
        np.add.at(lengths, owners, part_lengths)
        return EncodedDocuments(ids=ids, lengths=lengths, unbroken=unbroken)


@lru_cache(maxsize=8)
def load_encoder(identity: TokenizerIdentity) -> DocumentEncoder:
    """The encoder of an identity, loaded once a process.

    Raises:
        TokenizerError: as `load_engine`.
    """
    return DocumentEncoder(
        load_engine(identity), lambda: Cutter(reference_engine(identity).tokenizer)
    )


def _utf8_bytes(text: str) -> int:
    """UTF-8 bytes of a text; of a short one an upper bound, since counting costs."""
    return len(text) * 4 if len(text) * 4 <= MAX_UNBROKEN_BYTES else len(text.encode())


def _calls(parts: list[str]) -> Iterator[list[str]]:
    call: list[str] = []
    held = 0
    for part in parts:
        if call and held + len(part) > _CALL_CHARACTERS:
            yield call
            call, held = [], 0
        call.append(part)
        held += len(part)
    if call:
        yield call
