"""Expressions that cut text: grouped, joined and known by name."""

from __future__ import annotations

from pipeline.tokenizer import patterns
from pipeline.tokenizer.patterns import at_once, group_plain
from pipeline.tokenizer.vocabulary import describe
from tests.pipeline.vocabularies import DEEPSEEK, TEKKEN, real


class TestPatterns:
    def test_alternatives_that_look_nowhere_are_one_group(self) -> None:
        assert group_plain(r"a|(b|c)|[|)(]|\|\(|x(?!y)|[[a]|]z|w") == (
            r"(?:a|(b|c)|[|)(]|\|\()|x(?!y)|(?:[[a]|]z|w)"
        )
        assert group_plain("(?i)a|b(?=c)|d") == "(?i)a|b(?=c)|d"

    def test_several_expressions_are_one_only_where_that_is_known(self) -> None:
        assert at_once(("a",)) == "a"
        assert at_once(("a", "b")) is None
        assert at_once(patterns.DEEPSEEK) is not None

    def test_deepseek_and_tekken_cut_by_the_expressions_that_are_known(self) -> None:
        for path, splits in ((DEEPSEEK, patterns.DEEPSEEK), (TEKKEN, (patterns.TEKKEN,))):
            assert describe(real(path)).splits == splits
