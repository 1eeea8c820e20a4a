"""A fast encoder that leaves to the reference what it would read differently."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Protocol

import numpy as np

from pipeline.tokenizer.reference import Engine

Test = Callable[[str], bool]
"""Whether a text must go to the reference."""


_FEW = 4
"""Searching so many strings one by one is faster than searching how they begin."""


class Encoder(Protocol):
    """A library that encodes some texts faster than the reference, with the same ids."""

    def encode(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """Ids back to back, and how many each text has, int64; -1: it could not take that text."""
        ...


class ReferringEngine:
    """Encodes with a fast encoder; what meets a test, or what the encoder fails on, by reference.

    The reference is loaded when the first text goes to it.
    """

    def __init__(
        self,
        encoder: Encoder,
        tests: Sequence[Test],
        reference: Callable[[], Engine],
        dtype: np.dtype,
    ):
        self._encoder = encoder
        self._tests = tests
        self._reference = reference
        self._dtype = dtype
        self.referred = self.referred_characters = 0

    def encode(self, texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
        odd = np.array([any(test(text) for test in self._tests) for text in texts], np.bool_)
        plain = [text for text, is_odd in zip(texts, odd.tolist(), strict=True) if not is_odd]
        ids, found = self._encoder.encode(plain)
        lengths = np.full(len(texts), -1, np.int64)
        lengths[~odd] = found
        ids = ids.astype(self._dtype, copy=False)
        places = np.flatnonzero(lengths < 0)
        if not len(places):
            return ids, lengths
        self.referred += len(places)
        left = [texts[place] for place in places.tolist()]
        self.referred_characters += sum(map(len, left))
        others, lengths[places] = self._reference().encode(left)
        odd[places] = True
        from_reference = np.repeat(odd, lengths)
        whole = np.empty(len(from_reference), self._dtype)
        whole[from_reference] = others
        whole[~from_reference] = ids
        return whole, lengths

    def decode(self, ids: np.ndarray) -> str:
        return self._reference().decode(ids)


def is_panic(error: BaseException) -> bool:
    """Whether a library written in Rust gave up; such an error is no `Exception`."""
    return type(error).__name__ == "PanicException"


def holds_any(strings: Iterable[str]) -> Test:
    """Whether a text has one of these strings."""
    by_start: dict[str, list[str]] = {}
    for string in strings:
        by_start.setdefault(string[:2], []).append(string)
    alone = [string for group in by_start.values() if len(group) <= _FEW for string in group]
    many = {start: group for start, group in by_start.items() if len(group) > _FEW}

    def test(text: str) -> bool:
        return any(string in text for string in alone) or any(
            start in text and any(string in text for string in group)
            for start, group in many.items()
        )

    return test


def holds_character(characters: str) -> Test:
    """Whether a text has one of these few characters; fast where none is in Latin-1."""
    return lambda text: any(character in text for character in characters)


def has_long_space(limit: int) -> Test:
    """Whether a text has more than `limit` characters of white space in a row."""

    def test(text: str) -> bool:
        return len(text) > limit and any(
            run.end() - run.start() > limit for run in re.finditer(r"\s+", text)
        )

    return test


def may_change_by_nfc(text: str) -> bool:
    """Whether NFC may not leave a text as it is.

    A character that this Python does not know yet counts as one that may change: the reference may
    know a later version of Unicode.
    """
    if text.isascii():
        return False
    if not unicodedata.is_normalized("NFC", text):
        return True
    points = np.frombuffer(text.encode("utf-32-le"), np.uint32)
    return bool(_unassigned()[points].any())


@lru_cache(maxsize=1)
def _unassigned() -> np.ndarray:
    """Code points without a meaning in this Python's Unicode, bool, (0x110000,)."""
    return np.array([unicodedata.category(chr(point)) == "Cn" for point in range(0x110000)])
