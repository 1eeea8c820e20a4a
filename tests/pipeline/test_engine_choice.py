"""The engine of a job: the fastest that is installed, right, and refers little."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer

from pipeline.tokenizer import engine, splintr_encoder
from pipeline.tokenizer.choose import choose_engine
from pipeline.tokenizer.engine import engine_version, load_engine
from pipeline.tokenizer.identity import TokenizerError
from pipeline.tokenizer.proof import prove_on_made_texts
from tests.corpora import some_texts, tiny_identity, tiny_tokenizer
from tests.pipeline.vocabularies import DEEPSEEK, FAST, KATAKANA, real, saved, using


class _Wrong:
    """An encoder that takes one word for another."""

    def __init__(self, inner: Any, word: str):
        self._inner, self._word = inner, word

    def encode(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        return self._inner.encode([text.replace(self._word, "x") for text in texts])


@pytest.fixture
def spoil(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes an engine take a word for another."""

    def spoil(name: str, word: str) -> None:
        build = engine._FAST[name]

        def wrong(description: Any) -> Any:
            encoder, tests = build(description)
            return _Wrong(encoder, word), tests

        monkeypatch.setitem(engine._FAST, name, wrong)
        for cached in (load_engine, prove_on_made_texts):
            cached.cache_clear()

    yield spoil
    for cached in (load_engine, prove_on_made_texts):
        cached.cache_clear()


class TestTheChoice:
    def test_auto_takes_the_fastest(self) -> None:
        choice = choose_engine(tiny_identity(), "auto", some_texts(20))
        assert str(choice) == f"engine splintr {splintr_encoder.CHECKED_VERSION}"
        assert choice.identity == using("splintr", tiny_identity())

    def test_what_is_not_installed_is_passed_over_and_said(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def version(name: str) -> str:
            raise importlib.metadata.PackageNotFoundError(name)

        monkeypatch.setattr(importlib.metadata, "version", version)
        choice = choose_engine(tiny_identity(), "auto", [])
        assert (
            str(choice) == f"engine tiktoken {engine_version('tiktoken')} (splintr: not installed)"
        )
        monkeypatch.setattr(importlib.metadata, "version", lambda name: "0.23.0")
        choice = choose_engine(tiny_identity(), "auto", [])
        assert "(splintr: 0.23.0 is installed, 0.22.0 was checked)" in str(choice)
        with pytest.raises(TokenizerError, match=r'tokenizer\.engine is "splintr", but splintr: 0'):
            choose_engine(tiny_identity(), "splintr", [])

    def test_the_named_one_is_taken(self) -> None:
        for name in engine.ENGINES:
            assert choose_engine(tiny_identity(), name, ["a"]).identity.engine == name

    def test_one_that_differs_on_made_texts_is_passed_over(self, spoil: Any) -> None:
        spoil("splintr", "DON'T")
        choice = choose_engine(tiny_identity(), "auto", [])
        assert choice.identity.engine == "tiktoken"
        ((name, reason),) = choice.passed_over
        assert name == "splintr"
        assert reason.startswith("its ids are not the reference's: its token ")

    def test_one_that_differs_on_the_corpus_alone_is_passed_over(self, spoil: Any) -> None:
        spoil("splintr", "weighs a heavy")
        spoil("tiktoken", "weighs a heavy")
        assert prove_on_made_texts(using("splintr", tiny_identity())) is None
        choice = choose_engine(tiny_identity(), "auto", ["a load", "it weighs a heavy one"])
        assert choice.identity.engine == "hf"
        assert [name for name, _ in choice.passed_over] == list(FAST)
        with pytest.raises(
            TokenizerError, match=r"'it weighs a heavy one' \(21 characters\) is \d"
        ):
            choose_engine(tiny_identity(), "tiktoken", ["a load", "it weighs a heavy one"])

    def test_one_that_would_leave_much_to_the_reference_gives_way(self) -> None:
        few, many = [KATAKANA, "x" * 100], [KATAKANA, "\u6f22\u5b57"]
        assert choose_engine(real(DEEPSEEK), "auto", few).identity.engine == "splintr"
        choice = choose_engine(real(DEEPSEEK), "auto", many)
        assert choice.identity.engine == "tiktoken"
        assert choice.passed_over == (
            ("splintr", "would leave 71% of the sample to the reference"),
        )
        assert choose_engine(real(DEEPSEEK), "splintr", many).identity.engine == "splintr"

    def test_where_all_leave_as_much_the_fastest_is_taken(self, tmp_path: Path) -> None:
        tokenizer = Tokenizer.from_file(str(tiny_tokenizer()))
        tokenizer.add_tokens(["steel"])
        choice = choose_engine(saved(tokenizer, tmp_path / "v"), "auto", ["the steelyard"])
        assert (choice.identity.engine, choice.passed_over) == ("splintr", ())
