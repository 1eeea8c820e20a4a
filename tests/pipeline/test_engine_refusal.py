"""A vocabulary that an engine cannot express is refused with the reason."""

from __future__ import annotations

from pathlib import Path

import pytest
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers

from pipeline.tokenizer.choose import choose_engine
from pipeline.tokenizer.identity import TokenizerError
from tests.pipeline.vocabularies import BYTES, FAST, changed, saved, sequence, split


class TestRefusal:
    @pytest.mark.parametrize(
        ("tokenizer", "reason"),
        [
            (changed(normalizer=normalizers.Lowercase()), "it normalizes text with Lowercase"),
            (changed(normalizer=normalizers.NFKC()), "it normalizes text with NFKC"),
            (changed(pre_tokenizer=pre_tokenizers.ByteLevel()), "it adds a space before a text"),
            (changed(pre_tokenizer=BYTES), "it does not split text before merging"),
            (changed(pre_tokenizer=pre_tokenizers.Metaspace()), "ends in Metaspace, not in Byte"),
            (
                changed(pre_tokenizer=sequence(pre_tokenizers.Digits(), BYTES)),
                "its pre-tokenizer has a step Digits",
            ),
            (
                changed(pre_tokenizer=sequence(split("merged_with_next"), BYTES)),
                r"a step Split \(MergedWithNext, invert False\)",
            ),
            (changed(pre_tokenizer=sequence(split(pattern=" "), BYTES)), "a step Split"),
            (
                changed(
                    pre_tokenizer=sequence(
                        split(), pre_tokenizers.ByteLevel(add_prefix_space=False)
                    )
                ),
                "it splits before ByteLevel's own expression",
            ),
            (
                changed(pre_tokenizer=sequence(split(), split(), BYTES)),
                "it cuts text 2 times over|not checked with how",
            ),
            (Tokenizer(models.WordPiece({"a": 0, "[UNK]": 1})), "its model is WordPiece, not BPE"),
            (Tokenizer(models.Unigram([("a", 0.0)])), "its model is Unigram, not BPE"),
            (Tokenizer(models.BPE({"a": 0}, [])), "no token for byte 0x00"),
            (Tokenizer(models.BPE({"a": 0}, [], byte_fallback=True)), "has byte_fallback = True"),
            (Tokenizer(models.BPE({"a": 0}, [], dropout=0.5)), "has dropout = 0.5"),
            (
                Tokenizer(models.BPE({"a": 0}, [], end_of_word_suffix="</w>")),
                "has end_of_word_suffix = '</w>'",
            ),
        ],
    )
    def test_what_cannot_be_expressed_is_refused_with_the_reason(
        self, tokenizer: Tokenizer, reason: str, tmp_path: Path
    ) -> None:
        identity = saved(tokenizer, tmp_path / "v")
        choice = choose_engine(identity, "auto", ["a text"])
        assert choice.identity.engine == "hf"
        assert [name for name, _ in choice.passed_over] == list(FAST)
        for name in FAST:
            with pytest.raises(TokenizerError, match=reason):
                choose_engine(identity, name, [])

    def test_splintr_is_for_patterns_that_were_checked(self, tmp_path: Path) -> None:
        mine = sequence(split(pattern=Regex(r"[a-z]+|[^a-z]+")), BYTES)
        choice = choose_engine(saved(changed(pre_tokenizer=mine), tmp_path / "v"), "auto", ["a1"])
        assert str(choice).startswith("engine tiktoken 0.")
        assert "splintr: it was not checked with how this vocabulary cuts text" in str(choice)

    def test_a_pattern_that_leaves_text_out_is_found_by_the_proof(self, tmp_path: Path) -> None:
        gaps = sequence(split(pattern=Regex(r"[a-z]+")), BYTES)
        identity = saved(changed(pre_tokenizer=gaps), tmp_path / "v")
        with pytest.raises(TokenizerError, match="its ids are not the reference's: its token"):
            choose_engine(identity, "tiktoken", [])
