"""The regular expressions that cut text into pieces before merging, by name and by form."""

from __future__ import annotations

import re
from pathlib import Path

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_SPACE = r"\s*[\r\n]+|\s+(?!\S)|\s+"

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
CL100K = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s+\z|\s*[\r\n]|\s+(?!\S)|\s"
)
O200K = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_CONTRACTIONS}?"
    rf"|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_CONTRACTIONS}?"
    rf"|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACE}"
)
LLAMA3 = (
    rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}"
    rf"| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACE}"
)
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
TEKKEN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*"
    rf"|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACE}"
)

NAMED = {
    "gpt2": GPT2,
    "r50k_base": GPT2,
    "p50k_base": GPT2,
    "cl100k_base": CL100K,
    "o200k_base": O200K,
    "llama3": LLAMA3,
    "qwen2": QWEN2,
}
SPECIAL_TOKENS = {
    "gpt2": {"<|endoftext|>": 50256},
    "r50k_base": {"<|endoftext|>": 50256},
    "p50k_base": {"<|endoftext|>": 50256},
    "cl100k_base": {"<|endoftext|>": 100257, "<|endofprompt|>": 100276},
    "o200k_base": {"<|endoftext|>": 199999, "<|endofprompt|>": 200018},
    "llama3": {"<|begin_of_text|>": 128000, "<|end_of_text|>": 128001},
    "qwen2": {"<|endoftext|>": 151643, "<|im_start|>": 151644, "<|im_end|>": 151645},
}


def guess_name(path: Path) -> str | None:
    """The one named pattern that a rank file's name speaks of."""
    found = [name for name in NAMED if name in path.name.lower()]
    return found[0] if len(found) == 1 else None


DEEPSEEK = (
    r"\p{N}{1,3}",
    "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"""
    "|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*"
    r"|\s*[" + "\r\n" + r"]+|\s+(?!\S)|\s+",
)
_KANA_HAN = "\u4e00-\u9fa5\u3040-\u30ff"
_DEEPSEEK_AT_ONCE = "|".join(
    (
        r"\p{N}{1,3}",
        # The third expression inside a run that the second one found; no digit or space is there.
        rf"[{_KANA_HAN}&&[^\p{{L}}\p{{P}}\p{{S}}]]?[{_KANA_HAN}&&[\p{{L}}\p{{M}}]]+",
        rf"[{_KANA_HAN}&&[\p{{P}}\p{{S}}]]+",
        rf"[{_KANA_HAN}&&[^\p{{L}}\p{{M}}\p{{P}}\p{{S}}]]+(?![{_KANA_HAN}&&[\p{{L}}\p{{M}}]])",
        # The third expression between those runs and the digits: it sees neither, text ends there.
        r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+""",
        rf"[^\r\n\p{{L}}\p{{P}}\p{{S}}\p{{N}}{_KANA_HAN}]?[\p{{L}}\p{{M}}&&[^{_KANA_HAN}]]+",
        rf" ?[\p{{P}}\p{{S}}&&[^{_KANA_HAN}]]+[\r\n]*",
        r"\s*[\r\n]+",
        rf"\s+(?![^\s\p{{N}}{_KANA_HAN}])",
        r"\s+",
        # What no expression matches stays one piece, but for a character that begins a word.
        rf"[^\s\p{{L}}\p{{M}}\p{{N}}\p{{P}}\p{{S}}{_KANA_HAN}]+"
        rf"(?![\p{{L}}\p{{M}}&&[^{_KANA_HAN}]])",
    )
)
_AT_ONCE: dict[tuple[str, ...], str] = {DEEPSEEK: _DEEPSEEK_AT_ONCE}


def at_once(splits: tuple[str, ...]) -> str | None:
    """One expression that cuts as these do one after the other; None: none is known.

    Each of several cuts only what the ones before it left or found, so their alternatives cannot
    just be joined: look-aheads must not see past a piece, and text that none matches is a piece.
    """
    return splits[0] if len(splits) == 1 else _AT_ONCE.get(splits)


def group_plain(pattern: str) -> str:
    """The same expression with neighbouring alternatives that look nowhere ahead in one group.

    A backtracking engine tries the alternatives of the whole one by one, each with a search of its
    own; a group without look-around it hands to a linear engine at once.
    """
    if re.search(r"\(\?[a-zA-Z-]+\)", pattern):
        return pattern  # a flag holds to the end of its group
    groups: list[str] = []
    plain: list[str] = []
    for alternative in _alternatives(pattern):
        if re.search(r"\(\?(<?[=!]|>)", alternative):
            groups += [*_group(plain), alternative]
            plain = []
        else:
            plain.append(alternative)
    return "|".join(groups + _group(plain))


def _group(alternatives: list[str]) -> list[str]:
    return [f"(?:{'|'.join(alternatives)})"] if alternatives else []


def _alternatives(pattern: str) -> list[str]:
    """A pattern's alternatives at the top level."""
    found, start, groups, classes = [], 0, 0, 0
    for match in re.finditer(r"\\.|[\[\]()|]", pattern, re.DOTALL):
        character = match.group()
        classes += {"[": 1, "]": -1}.get(character, 0)
        if classes == 0:
            groups += {"(": 1, ")": -1}.get(character, 0)
            if character == "|" and groups == 0:
                found.append(pattern[start : match.start()])
                start = match.end()
    return [*found, pattern[start:]]
