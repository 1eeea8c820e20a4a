"""tiktoken with the ranks of any byte-level BPE."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from pipeline.tokenizer.identity import EngineUnavailable
from pipeline.tokenizer.patterns import at_once, group_plain
from pipeline.tokenizer.referral import Encoder, Test, has_long_space, is_panic
from pipeline.tokenizer.vocabulary import ByteLevelBPE

_LONGEST_SPACE = 400_000
"""Its regular expressions overflow on about a million characters of white space."""
_UNUSED = "<|unused|>"
"""A special token that is never let in; with none at all tiktoken looks for nothing everywhere."""


_NOTHING = np.zeros(0, np.uint32)


class _TiktokenEncoder:
    def __init__(self, encoding: Any, ids: np.ndarray):
        self._encode = encoding.encode_to_numpy
        self._ids = ids

    def encode(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        parts = [self._ranks_of(text) for text in texts]
        lengths = [-1 if part is None else len(part) for part in parts]
        ranks = [_NOTHING, *(part for part in parts if part is not None)]
        return self._ids[np.concatenate(ranks)], np.array(lengths, np.int64)

    def _ranks_of(self, text: str) -> np.ndarray | None:
        try:
            return self._encode(text, disallowed_special=())
        except BaseException as error:
            if is_panic(error):
                return None
            raise


def version() -> str:
    """Which tiktoken is installed.

    Raises:
        EngineUnavailable: none.
    """
    return _library().__version__


def build(description: ByteLevelBPE) -> tuple[Encoder, list[Test]]:
    """Build tiktoken for a vocabulary; also the tests of texts that are not for it.

    Raises:
        EngineUnavailable: it cannot merge or cut as the vocabulary does.
    """
    pattern = at_once(description.splits)
    if pattern is None:
        raise EngineUnavailable(
            f"it cuts text {len(description.splits)} times over, by expressions that are not known "
            "to be one"
        )
    ranks = description.ranks()
    try:
        encoding = _library().Encoding(
            "vocabulary",
            pat_str=group_plain(pattern),
            mergeable_ranks=ranks.ranks,
            special_tokens={_UNUSED: max(ranks.ranks.values()) + 1},
        )
    except BaseException as error:
        if isinstance(error, ValueError) or is_panic(error):
            raise EngineUnavailable(f"it cannot read the vocabulary: {error}") from error
        raise
    ids = ranks.ids.astype(np.uint32)
    return _TiktokenEncoder(encoding, ids), [has_long_space(_LONGEST_SPACE)]


def _library() -> Any:
    try:
        return importlib.import_module("tiktoken")
    except ImportError as error:
        raise EngineUnavailable("not installed") from error
