"""The proof finds every difference, down to how single characters are cut."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Regex

from pipeline.tokenizer import engine, patterns, proof, splintr_encoder
from pipeline.tokenizer.identity import EngineUnavailable
from pipeline.tokenizer.proof import prove_equal
from pipeline.tokenizer.rank_files import RankFile
from pipeline.tokenizer.reference import HuggingFaceEngine, reference_engine
from pipeline.tokenizer.referral import ReferringEngine
from pipeline.tokenizer.vocabulary import describe
from tests.corpora import tiny_identity
from tests.pipeline.vocabularies import BYTES, FAST, from_merges, saved, sequence, split, using


class TestTheProof:
    def test_the_first_difference_has_its_text_place_and_ids(self) -> None:
        reference = reference_engine(tiny_identity())
        right = reference.encode(["1 2", "345"])[0].tolist()

        class Short(HuggingFaceEngine):
            def encode(self, texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
                ids, lengths = super().encode(texts)
                lengths[-1] -= 1
                return ids[:-1], lengths

        difference = prove_equal(
            Short(reference.tokenizer, np.dtype("<u2")), reference, ["1 2", "345"]
        )
        assert difference == proof.Difference(
            text="345", position=2, found=None, expected=right[-1]
        )
        assert str(difference) == (
            f"its token 2 of '345' (3 characters) is None, must be {right[-1]}"
        )

    def test_another_way_to_cut_is_found_where_no_token_would_show_it(self) -> None:
        identity = using("tiktoken", tiny_identity())
        right = describe(identity)
        for name, pattern in patterns.NAMED.items():
            other = replace(right, splits=(pattern,))
            found = proof._prove_cuts(identity, other)
            assert (found is None) == (pattern == patterns.GPT2), name

    def test_made_texts_are_the_same_each_time_and_take_in_all_that_is_added(self) -> None:
        vocabulary = ["a", "b", "<x>", "<y>", "[INST]"]
        texts = list(proof.made_texts(vocabulary, ["<x>"]))
        assert texts == list(proof.made_texts(reversed(vocabulary), ["<x>"]))
        assert {"", "<x>", "<y> x [INST]", " " * 1500} <= set(texts)
        assert sum(map(len, texts)) < 400_000


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("splits", sorted(splintr_encoder.CHECKED))
def test_every_character_is_cut_as_the_reference_cuts_it(
    splits: tuple[str, ...], tmp_path: Path
) -> None:
    """Code points in the company that shows what they are taken for.

    All of planes 0 and 1; of the planes of ideographs, all of one kind, some.
    """
    tokenizer = from_merges([(b"a", b"b")])
    steps = [split(pattern=Regex(expression)) for expression in splits]
    tokenizer.pre_tokenizer = sequence(*steps, BYTES)
    described = [describe(saved(tokenizer, tmp_path / "v"))]
    if len(splits) == 1:
        file = RankFile(pattern=splits[0], ranks={}, first_id=0, special_tokens={})
        described.append(replace(described[0], content=None, rank_file=file))
    points = [*range(0xD800), *range(0xE000, 0x20000), *range(0x20000, 0x40000, 61)]
    points += [*range(0xE0000, 0xE0200), 0xF0000, 0x10FFFF]
    around = "a{0}b\n\nA{0}Bc  {0}  1{0}2 .{0}! {0}\n{0} '{0}/\r\n {0}{0}a\u0301{0}\u6f22{0}\u3042"
    proven = Counter()
    for start in range(0, len(points), 1 << 14):
        texts = [around.format(chr(point)) for point in points[start : start + (1 << 14)]]
        for name, description in product(FAST, described):
            reference, with_pairs = proof.probe(tokenizer, description, texts)
            right = HuggingFaceEngine(reference, np.dtype("<u4"))
            try:
                encoder, tests = engine.build_fast(name, with_pairs)
            except EngineUnavailable:
                continue  # said of a tokenizer.json that splintr would have to be told otherwise
            fast = ReferringEngine(encoder, tests, lambda right=right: right, np.dtype("<u4"))
            assert prove_equal(fast, right, texts) is None
            proven[name] += len(texts)
    assert proven["splintr"] >= len(points)
    assert proven["tiktoken"] == len(points) * len(described)
