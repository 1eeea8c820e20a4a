"""That an engine's ids are the reference's: on texts made to find differences, and on others.

Two vocabularies are tried. The real one tries the merges. In the other the tokens are single bytes
and the pairs that stand across two characters: with it every place where text is cut shows in the
ids, even where no real token would ever reach across.
"""

from __future__ import annotations

import random
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import islice, pairwise

import numpy as np
from tokenizers import Tokenizer, models

from pipeline.tokenizer.byte_level import bytes_of, letters_of
from pipeline.tokenizer.engine import build_fast, load_engine
from pipeline.tokenizer.identity import TokenizerIdentity
from pipeline.tokenizer.reference import Engine, HuggingFaceEngine, reference_engine
from pipeline.tokenizer.referral import ReferringEngine
from pipeline.tokenizer.vocabulary import ByteLevelBPE, describe

_BATCH = 256
_SHOWN = 60
_RUNS = " \n\t\r-=_*#./0aZ\u00a0\u0301\u3000\u00e9\u6f22\u3042\U0001f642"
_ODD = (
    "\x00\x0b\x1f\x7f\x85\u017f\u0130\u0131\u212a\u01c5\u02b0\u0345\u1680\u180e\u200b\u200d\u2028"
    "\u2029\u202f\u205f\u2060\u3000\u3006\u3007\u303f\u3040\u3041\u3097\u3099\u309b\u309f\u30a0"
    "\u30fb\u30ff\u3100\u4dff\u4e00\u9fa5\u9fa6\ufeff\ufffd\uffff\U0001f600\U0001f3fd\U000e0061"
    # One character each of what Unicode 14 to 17 added.
    "\u0870\u2c2f\U00011f00\U0001e4d0\U000323a0\U0002ebf0\ua7cb\U00010d40\U0001c8c0\ua7ce\u20c1"
)
_SCRIPTS = (
    "The quick brown fox -- it's 3,141.59% DON'T we'LL they'Re \u2019s 'S 'lL x'd'm",
    "\u0421\u044a\u0435\u0448\u044c \u0436\u0435 \u0435\u0449\u0451 \u044d\u0442\u0438\u0445",
    "\u0627\u0644\u0639\u0631\u0628\u064a\u0651\u0629 \u0661\u0662\u0663\u060c \u0646\u0635",
    "\u0e20\u0e32\u0e29\u0e32\u0e44\u0e17\u0e22 \u0e51\u0e52 \u0e01\u0e33\u0e25\u0e31\u0e07",
    "\u0939\u093f\u0928\u094d\u0926\u0940 \u092d\u093e\u0937\u093e \u0967\u0968\u0969",
    "\u65e5\u672c\u8a9e\u306e\u30c6\u30b9\u30c8\u3001\u30ab\u30ca\u30fb\u6f22\u5b57\u309c2024",
    "\ud55c\uad6d\uc5b4 \ud14d\uc2a4\ud2b8 \u1112\u1161\u11ab 12\uac1c",
    "e\u0301\u0327 n\u0303 a\u0308\u0323 Z\u0351\u036b\u0343\u036a\u0302\u036b \u00c5\u212b",
    "\U0001f468\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466 \U0001f1e9\U0001f1ea"
    "\U0001f3f4\U000e0067\U000e0062\U000e007f \u2764\ufe0f",
    "def f(x):\n\treturn {'a': [1, 2], \"b\": x**2}  # \u03c0 \u2260 3\n\n\n    pass\r\n",
    '<a href="https://example.org/a?b=1&c=%20">x</a>\r\n\r\n{"k": null, "z": -1e-9}\n//*/;\n/\n',
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """The first text that an engine encodes otherwise than the reference.

    `found` and `expected` are the ids at `position` of its tokens; None: no token there.
    """

    text: str
    position: int
    found: int | None
    expected: int | None

    def __str__(self) -> str:
        shown = self.text if len(self.text) <= _SHOWN else f"{self.text[:_SHOWN]}..."
        return (
            f"its token {self.position} of {shown!r} ({len(self.text)} characters) is "
            f"{self.found}, must be {self.expected}"
        )


def prove_equal(engine: Engine, reference: Engine, texts: Iterable[str]) -> Difference | None:
    """Encode texts both ways; the first difference, or None where there is none."""
    left = iter(texts)
    while batch := list(islice(left, _BATCH)):
        found, expected = engine.encode(batch), reference.encode(batch)
        if not all(map(np.array_equal, found, expected)):
            return _first_difference(batch, found, expected)
    return None


@lru_cache(maxsize=8)
def prove_on_made_texts(identity: TokenizerIdentity) -> Difference | None:
    """Try the engine of an identity on texts made to find differences; takes about a second.

    Raises:
        EngineUnavailable: the engine cannot be built.
    """
    description = describe(identity)
    cutting = _prove_cuts(identity, description)
    if cutting is not None:
        return cutting
    reference = reference_engine(identity)
    vocabulary = reference.tokenizer.get_vocab(with_added_tokens=True)
    return prove_equal(load_engine(identity), reference, made_texts(vocabulary, description.added))


def _first_difference(
    texts: Sequence[str],
    found: tuple[np.ndarray, np.ndarray],
    expected: tuple[np.ndarray, np.ndarray],
) -> Difference:
    rows = zip(texts, _rows(*found), _rows(*expected), strict=True)
    for text, mine, right in rows:
        if not np.array_equal(mine, right):
            shorter = min(len(mine), len(right))
            unequal = np.flatnonzero(mine[:shorter] != right[:shorter])
            position = int(unequal[0]) if len(unequal) else shorter
            return Difference(
                text=text,
                position=position,
                found=int(mine[position]) if position < len(mine) else None,
                expected=int(right[position]) if position < len(right) else None,
            )
    raise AssertionError("no text differs")


def _rows(ids: np.ndarray, lengths: np.ndarray) -> list[np.ndarray]:
    return np.split(ids, np.cumsum(lengths)[:-1])


def made_texts(vocabulary: Iterable[str], added: Sequence[str]) -> Iterator[str]:
    """Texts on which encoders are known to differ; the same ones each time.

    Args:
        vocabulary: the tokens, as a tokenizer.json writes them.
        added: strings that become one token wherever they stand.
    """
    draw = random.Random(0)
    yield ""
    for character in _RUNS:
        for length in (1, 2, 3, 4, 5, 8, 9, 15, 16, 17, 99, 100, 101, 255, 256, 257, 1500):
            yield character * length
            yield f"x{character * length}y{character}"
    for newlines in ("\r\n", "\n\r", " \n", "\n ", "\t \n", "\r\n\t"):
        yield from (newlines * 40, f"a{newlines * 3}b {newlines}")
    yield from _SCRIPTS
    yield from (f" {script}\ufeff\x00{script[::-1]}  " for script in _SCRIPTS)
    yield "".join(draw.choices("ABCDEFabcdef0123456789+/", k=4000))
    yield "\n".join("".join(draw.choices("0123456789abcdef", k=64)) for _ in range(40))
    for _ in range(300):
        yield "".join(draw.choices(characters(), k=draw.randrange(1, 80)))
    written = sorted(vocabulary)
    tokens = [token for text in written if (token := bytes_of(text)) is not None]
    for _ in range(1500):
        together = b"".join(draw.choices(tokens, k=draw.randrange(1, 12)))
        yield together.decode("utf-8", errors="replace")
    others = [text for text in written if text.startswith(("<", "[")) and text.endswith((">", "]"))]
    for group in (sorted(added), sorted(set(others) - set(added))):
        for start in range(0, len(group), 20):
            yield " x ".join(group[start : start + 20])
            yield "".join(group[start : start + 20])


@lru_cache(maxsize=1)
def characters() -> str:
    """Some characters of every general category, and those that libraries know to disagree on."""
    by_category: dict[str, list[str]] = {}
    for point in (*range(0xD800), *range(0xE000, 0x20000)):
        by_category.setdefault(unicodedata.category(chr(point)), []).append(chr(point))
    spread = [
        group[at * (len(group) - 1) // 15] for group in by_category.values() for at in range(16)
    ]
    return "".join(dict.fromkeys([*map(chr, range(128)), *spread, *_ODD]))


def cutting_texts() -> list[str]:
    """Texts that put characters of every kind beside each other; the same ones each time."""
    draw = random.Random(1)
    everything = characters()
    often = " \n\r\t'/.,a-A1s\u0301\u6f22\u3042\u30fb\u00a0\x00"
    texts = [
        f"a{x}b A{x}Bc  {x}  1{x}2 .{x}! {x}\n{x} '{x}/\r\n {x}{x}\u0301{x}\u6f22{x} {x}"
        for x in everything
    ]
    for _ in range(2500):
        pool = often if draw.random() < 0.4 else everything
        texts.append("".join(draw.choices(pool + often * 3, k=draw.randrange(1, 24))))
    return texts


def _prove_cuts(identity: TokenizerIdentity, description: ByteLevelBPE) -> Difference | None:
    """Whether an engine cuts texts where the reference does."""
    texts = cutting_texts()
    reference, described = probe(reference_engine(identity).tokenizer, description, texts)
    right = HuggingFaceEngine(reference, np.dtype("<u4"))
    encoder, tests = build_fast(identity.engine, described)
    engine = ReferringEngine(encoder, tests, lambda: right, np.dtype("<u4"))
    return prove_equal(engine, right, texts)


def probe(
    tokenizer: Tokenizer, description: ByteLevelBPE, texts: Sequence[str]
) -> tuple[Tokenizer, ByteLevelBPE]:
    """A vocabulary that cuts as another one does, and whose ids show where.

    Its tokens are the bytes, and the pairs of a character's last byte and the next one's first, as
    `texts` have them.
    """
    pairs = {a.encode()[-1:] + b.encode()[:1] for text in texts for a, b in pairwise(text)}
    tokens = [*(bytes([byte]) for byte in range(256)), *sorted(pairs)]
    vocabulary = {letters_of(token): rank for rank, token in enumerate(tokens)}
    merges = [(letters_of(token[:1]), letters_of(token[1:])) for token in tokens[256:]]
    reference = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    reference.pre_tokenizer = tokenizer.pre_tokenizer
    if tokenizer.normalizer is not None:
        reference.normalizer = tokenizer.normalizer
    file, content = description.rank_file, description.content
    if file is not None:
        ranks = {token: rank for rank, token in enumerate(tokens)}
        file = replace(file, ranks=ranks, first_id=0, special_tokens={})
    if content is not None:
        model = {"type": "BPE", "vocab": vocabulary, "merges": list(map(" ".join, merges))}
        content = {**content, "model": model, "added_tokens": []}
    return reference, replace(description, added=(), content=content, rank_file=file)
