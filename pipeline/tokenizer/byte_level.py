"""Byte-level BPE of a tokenizer.json in the terms that other libraries know.

Those libraries merge, of all neighbours whose concatenation is a token, the pair whose token has
the lowest rank. A tokenizer.json lists the pairs that may merge, in order. Both come to the same
where each token is what its own bytes merge to: whatever stands around a token's bytes, the merges
inside them are those that happen to the bytes alone, so if these end in the token, its last pair is
the only one that can ever make it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from tokenizers import models

from pipeline.tokenizer.identity import EngineUnavailable
from pipeline.tokenizer.patterns import GPT2


def _letters() -> str:
    """The character that stands for each byte, (256,): itself where it can be seen."""
    seen = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return "".join(chr(byte if byte in seen else next(others)) for byte in range(256))


_LETTERS = _letters()
_TO_LETTERS = dict(enumerate(_LETTERS))
_TO_BYTES = {ord(letter): byte for byte, letter in enumerate(_LETTERS)}


def letters_of(token: bytes) -> str:
    """How a byte-level tokenizer.json writes a token."""
    return token.decode("latin-1").translate(_TO_LETTERS)


def bytes_of(letters: str) -> bytes | None:
    """The token that a tokenizer.json writes so; None: it is not made of bytes."""
    return letters.translate(_TO_BYTES).encode("latin-1") if _all_letters(letters) else None


def _all_letters(letters: str) -> bool:
    return all(ord(letter) in _TO_BYTES for letter in letters)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Ranks:
    """Tokens in the order in which they merge.

    `ranks` maps a token's bytes to its place in that order, and `ids` a place to the token's id,
    int64. Every single byte is a token.
    """

    ranks: dict[bytes, int]
    ids: np.ndarray


def splits_of(content: dict[str, Any]) -> tuple[str, ...]:
    """The regular expressions by which a tokenizer.json cuts text, one after the other.

    Raises:
        EngineUnavailable: it prepares text in another way.
    """
    *splits, last = _flat(content.get("pre_tokenizer"), "pretokenizers") or [{"type": "nothing"}]
    if last["type"] != "ByteLevel":
        raise EngineUnavailable(f"its pre-tokenizer ends in {last['type']}, not in ByteLevel")
    if last.get("add_prefix_space", True):
        raise EngineUnavailable("it adds a space before a text")
    if last.get("use_regex", True):
        if splits:
            raise EngineUnavailable("it splits before ByteLevel's own expression")
        return (GPT2,)
    if not splits:
        raise EngineUnavailable("it does not split text before merging")
    return tuple(map(_expression, splits))


def _expression(split: dict[str, Any]) -> str:
    found = split["type"]
    if found == "Split" and "Regex" in split["pattern"]:
        behavior, invert = split["behavior"], split["invert"]
        if (behavior, invert) in (("Isolated", False), ("Removed", True)):
            return split["pattern"]["Regex"]
        found = f"Split ({behavior}, invert {invert})"
    raise EngineUnavailable(f"its pre-tokenizer has a step {found}")


def needs_nfc(content: dict[str, Any]) -> bool:
    """Whether text is brought to NFC first.

    Raises:
        EngineUnavailable: it is normalized in another way.
    """
    steps = [step["type"] for step in _flat(content.get("normalizer"), "normalizers")]
    if set(steps) - {"NFC"}:
        raise EngineUnavailable(f"it normalizes text with {', '.join(steps)}")
    return bool(steps)


def _flat(step: dict[str, Any] | None, field: str) -> list[dict[str, Any]]:
    if step is None:
        return []
    if step["type"] != "Sequence":
        return [step]
    return [inner for part in step[field] for inner in _flat(part, field)]


def check_model(content: dict[str, Any]) -> None:
    """Refuse what is not plain byte-level BPE.

    Raises:
        EngineUnavailable: the model is of another kind, or a byte has no token.
    """
    model = content["model"]
    if model.get("type", "BPE") != "BPE" or "merges" not in model:
        raise EngineUnavailable(f"its model is {model.get('type', 'unknown')}, not BPE")
    for setting in (
        "dropout",
        "continuing_subword_prefix",
        "end_of_word_suffix",
        "byte_fallback",
    ):
        if model.get(setting):
            raise EngineUnavailable(f"its model has {setting} = {model[setting]!r}")
    missing = [byte for byte, letter in enumerate(_LETTERS) if letter not in model["vocab"]]
    if missing:
        raise EngineUnavailable(f"it has no token for byte {missing[0]:#04x}")


def ranks_of(content: dict[str, Any]) -> Ranks:
    """The ranks that merge as a tokenizer.json's model does; it must pass `check_model`.

    Raises:
        EngineUnavailable: none do.
    """
    model = content["model"]
    vocabulary: dict[str, int] = model["vocab"]
    merges = list(map(_pair, model["merges"]))
    merger = models.BPE(vocab=vocabulary, merges=merges, cache_capacity=0)
    order = _order(merges)
    made = [token for token in order if len(merger.tokenize(token)) == 1]
    whole: list[str] = []
    if model.get("ignore_merges"):
        whole = _only_whole(vocabulary, set(made), merger)
    written = [*_LETTERS, *made, *whole]
    tokens = list(map(bytes_of, written))
    if None in tokens:
        raise EngineUnavailable(f"its token {written[tokens.index(None)]!r} is not made of bytes")
    return Ranks(
        ranks={token: rank for rank, token in enumerate(tokens) if token is not None},
        ids=np.array([vocabulary[token] for token in written], np.int64),
    )


def _pair(merge: str | list[str]) -> tuple[str, str]:
    left, right = merge.split(" ", 1) if isinstance(merge, str) else merge
    return left, right


def _order(merges: list[tuple[str, str]]) -> list[str]:
    """Tokens by the merge that makes them; of several, the one that ends its own bytes' merging."""
    tokens = list(map("".join, merges))
    several = [token for token, count in Counter(tokens).items() if count > 1]
    place = {token: index for index, token in reversed(list(enumerate(tokens)))}
    if several:
        rank = {pair: index for index, pair in reversed(list(enumerate(merges)))}
        place.update({token: _last_merge(token, rank, place[token]) for token in several})
    return sorted(place, key=place.__getitem__)


def _last_merge(token: str, rank: dict[tuple[str, str], int], default: int) -> int:
    """Which merge comes last when a token's own bytes are merged."""
    parts, last = list(token), default
    while len(parts) > 1:
        found = [(rank.get(pair, -1), at) for at, pair in enumerate(pairwise(parts))]
        allowed = [entry for entry in found if entry[0] >= 0]
        if not allowed:
            return default
        last, at = min(allowed)
        parts[at : at + 2] = ["".join(parts[at : at + 2])]
    return last


def _only_whole(vocabulary: dict[str, int], made: set[str], merger: models.BPE) -> list[str]:
    """Tokens that a piece of text becomes when it is just them, but that no merge makes."""
    found = []
    for token in sorted(vocabulary, key=vocabulary.__getitem__):
        if len(token) == 1 or token in made or not _all_letters(token):
            continue
        if len(merger.tokenize(token)) == 2:
            raise EngineUnavailable(
                f"its token {token!r} stands for a whole piece but is not merged"
            )
        found.append(token)
    return found
