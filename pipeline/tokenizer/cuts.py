r"""Where a long text may be cut so that the ids of its parts are the ids of the whole.

Most vocabularies first split a text into words by a pattern and then encode each word by itself, so
a text may be cut between two words, if the words of both sides are found alike without the other
side. That depends on the vocabulary ("\n" before a letter is a border for most, before ";" for
few), so nothing is assumed: each cut is tried on the text around it. A pattern is matched from one
word's end to the next word's, and forgets what was before. Hence, with w characters on each side of
a place p, p is taken as a border only if from every one of the w starts before p

- a word ends at p and the next begins there,
- what is left of p and what is right of it, each alone, give the ids that they give together,

and if both sides hold a border of their own. So no word that reaches over p, or that ends there for
what stands more than w characters away, goes unseen: such a word would have to fall into several
when it is read from its middle, and still be one from its beginning. Whole encodings say so in
tests/pipeline/test_cuts.py, and for each vocabulary when it is loaded.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise

from tokenizers import Tokenizer

PART_CHARACTERS = 1 << 18
"""Texts up to this length are never cut; parts are about as long."""
_WINDOW = 32
_TRIES = 8
_LOOK = 2048
"""Characters that are looked through for a candidate: most are found in a few."""
_CANDIDATES = (
    re.compile(r"\n[A-Za-z]"),  # a line's beginning
    re.compile(r"\w[ \n]"),  # a word's end
    re.compile(r"\W\w|\w\W"),
    re.compile(r"(?s).."),
)
"""Kinds of places, after the first character; those first that mostly are borders."""
_PROBE = (
    "The quick brown fox can't jump 12345 times.  It's 3.14!\r\n\r\n\tdef f(x):\n    return x+1\n"
    ";\n\n//----------\n \n日本語のテキスト、漢字かな。\nпривет мир e\u0301te\u0301\n"  # noqa: RUF001
    "👩\u200d👩\u200d👧 🇩🇪🇫🇷\u00a0\u3000________  ...   \n'LL 'll\n000000000000 AAAAAAAAAAAAAA\n"
    "aGVsbG8gd29ybGQhIQ== 0xDEADBEEF مرحبا بالعالم ภาษาไทย हिन्दी HTTPServer camelCaseWord\n"
    "a1b2c3 --flag=value {[()]} the end of it, and then some more of the plain words\n"
)


class Cutter:
    """Cuts texts at safe places of one vocabulary.

    Args:
        tokenizer: the vocabulary; kept, not changed.
        part_characters: what parts are about as long as.
    """

    def __init__(self, tokenizer: Tokenizer, *, part_characters: int = PART_CHARACTERS) -> None:
        self._tokenizer = tokenizer
        self._part = part_characters
        added = (token.content for token in tokenizer.get_added_tokens_decoder().values())
        self._window = max(_WINDOW, 1 + max(map(len, added), default=0))
        self._cuts = tokenizer.pre_tokenizer is not None and self._is_exact()

    def parts(self, text: str) -> list[str]:
        """A text in consecutive parts with the same ids; where no place is safe, longer ones."""
        if len(text) <= self._part or not self._cuts:
            return [text]
        places = [0, *self._places(text, self._part), len(text)]
        return [text[start:stop] for start, stop in pairwise(places)]

    def _is_exact(self) -> bool:
        """Whether a text full of borders, cut often, has the ids of the whole."""
        places = [0, *self._places(_PROBE, len(_PROBE) // 16), len(_PROBE)]
        parts = [_PROBE[start:stop] for start, stop in pairwise(places)]
        whole, *found = self._ids([_PROBE, *parts])
        return len(parts) > 1 and [token for ids in found for token in ids] == whole

    def _places(self, text: str, part: int) -> Iterator[int]:
        """Safe places, the next one after half a part's length at the earliest."""
        low, high = part // 2, part
        while high < len(text):
            place = self._place(text, low, high)
            if place is None:
                low, high = high, high + part  # the part grows until there is a border
            else:
                yield place
                low, high = place + part // 2, place + part

    def _place(self, text: str, low: int, high: int) -> int | None:
        """A safe place in `[low, high)`, near the end, or None."""
        for candidates in _CANDIDATES:
            for number in range(_TRIES):
                # Looked for from eight points on, the last first: no list of all candidates.
                begin = high - (number + 1) * (high - low) // _TRIES
                found = candidates.search(text, begin, min(begin + _LOOK, high))
                if found and self._is_border(text, found.start() + 1):
                    return found.start() + 1
        return None

    def _is_border(self, text: str, place: int) -> bool:
        first = max(0, place - self._window)
        stop = min(len(text), place + self._window)
        left, right = text[first:place], text[place:stop]
        if not self._agree(left, right, [0]):  # most that are none fail here
            return False
        if (first > 0 and self._is_word(left)) or (stop < len(text) and self._is_word(right)):
            return False
        return self._agree(left, right, range(1, len(left)))

    def _is_word(self, text: str) -> bool:
        """Whether no border is inside a text."""
        words = self._tokenizer.encode(text, add_special_tokens=False).word_ids
        return words[0] == words[-1]

    def _agree(self, left: str, right: str, starts: range | list[int]) -> bool:
        """Whether both sides have the ids that they have together, from each start in `left`."""
        lefts = [left[start:] for start in starts]
        after, *others = self._tokenizer.encode_batch(
            [right, *lefts, *(part + right for part in lefts)], add_special_tokens=False
        )
        for before, both in zip(others[: len(lefts)], others[len(lefts) :], strict=True):
            words, border = both.word_ids, len(before.ids)
            if both.ids != before.ids + after.ids or not 0 < border < len(words):
                return False
            if words[border - 1] == words[border] and words[border] is not None:
                return False
        return True

    def _ids(self, texts: list[str]) -> list[list[int]]:
        encodings = self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        return [encoding.ids for encoding in encodings]
