"""Fast engines give the reference's ids, whatever the vocabulary's merges."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pipeline.settings.documents import TokenizerConfig
from pipeline.tokenizer.engine import load_engine
from pipeline.tokenizer.identity import TokenizerError
from pipeline.tokenizer.proof import prove_equal, prove_on_made_texts
from pipeline.tokenizer.reference import HuggingFaceEngine, reference_engine
from pipeline.tokenizer.resolve import resolve_tokenizer
from tests.corpora import EOS, some_texts, tiny_identity
from tests.pipeline.vocabularies import (
    DEEPSEEK,
    FAST,
    O200K,
    TEKKEN,
    from_merges,
    real,
    saved,
    using,
)


class TestTheFastEngines:
    @pytest.mark.parametrize("name", FAST)
    def test_give_the_ids_of_the_reference(self, name: str) -> None:
        texts = [*some_texts(300), "", " ", "\n\n", f"a{EOS}b", "<|unused|>"]
        fast = load_engine(using(name, tiny_identity()))
        ids, lengths = fast.encode(texts)
        right, right_lengths = reference_engine(tiny_identity()).encode(texts)
        assert (ids.dtype, lengths.dtype) == (np.uint16, np.int64)
        assert ids.tolist() == right.tolist()
        assert lengths.tolist() == right_lengths.tolist()
        assert fast.referred == 0
        assert fast.decode(ids[:9]) == reference_engine(tiny_identity()).decode(ids[:9])

    @pytest.mark.parametrize("name", FAST)
    def test_of_no_documents_make_no_ids(self, name: str) -> None:
        ids, lengths = load_engine(using(name, tiny_identity())).encode([])
        assert (ids.shape, lengths.shape, ids.dtype) == ((0,), (0,), np.uint16)

    @pytest.mark.parametrize("name", FAST)
    @pytest.mark.parametrize(
        "path", [DEEPSEEK, O200K, pytest.param(TEKKEN, marks=pytest.mark.slow)]
    )
    def test_are_proven_on_real_vocabularies(self, name: str, path: str) -> None:
        assert prove_on_made_texts(using(name, real(path))) is None

    @pytest.mark.parametrize("name", FAST)
    def test_survive_a_megabyte_without_a_break(self, name: str) -> None:
        texts = ["a load", " " * 1_100_000, "b" * 1_000_000, "\n" * 1_000_000, "a load"]
        fast = load_engine(using(name, tiny_identity()))
        before = fast.referred
        assert prove_equal(fast, reference_engine(tiny_identity()), texts) is None
        assert fast.referred - before == (2 if name == "tiktoken" else 0)

    def test_of_another_version_than_the_job_began_with_stop_it(self) -> None:
        other = replace(using("tiktoken", tiny_identity()), engine_version="0.0.1")
        with pytest.raises(
            TokenizerError, match=r"encodes with tiktoken 0\.0\.1, but here .* is i"
        ):
            load_engine(other)


class TestRanks:
    @pytest.mark.parametrize("ignore_merges", [False, True])
    def test_merge_as_the_listed_pairs_do_or_are_refused(
        self, tmp_path: Path, ignore_merges: bool
    ) -> None:
        """Random lists of merges: repeated, out of order, with tokens that nothing can reach."""
        draw = random.Random(int(ignore_merges))
        refused = repeated = unreachable = 0
        for _ in range(80):
            tokens = [b"a", b"b"]
            merges = []
            for _ in range(draw.randrange(1, 20)):
                pair = (draw.choice(tokens), draw.choice(tokens))
                if pair not in merges and len(pair[0] + pair[1]) < 9:
                    merges.append(pair)
                    tokens.append(pair[0] + pair[1])
            draw.shuffle(merges)
            tokenizer = from_merges(merges, ignore_merges=ignore_merges)
            repeated += len(set(map(b"".join, merges))) < len(merges)
            identity = saved(tokenizer, tmp_path / "v")
            try:
                fast = load_engine(using("tiktoken", identity))
            except TokenizerError:
                refused += 1
                continue
            alone = from_merges(merges)
            unreachable += any(len(alone.encode(t.decode()).ids) > 1 for t in tokens)
            texts = ["".join(draw.choices("ab", k=draw.randrange(1, 30))) for _ in range(100)]
            texts += ["".join(draw.choices("ab", k=draw.randrange(90, 300))) for _ in range(9)]
            texts += [token.decode() for token in tokens]
            assert prove_equal(fast, HuggingFaceEngine(tokenizer, np.dtype("<u2")), texts) is None
        assert repeated > 5
        assert unreachable > 5
        assert (refused > 5) == ignore_merges  # else what nothing can reach is just left out
        assert refused < 60

    def test_ids_need_not_follow_the_order_of_merges(self, tmp_path: Path) -> None:
        identity = saved(from_merges([(b"b", b"c"), (b"a", b"b")]), tmp_path / "v")
        document = json.loads(Path(identity.path).read_bytes())
        vocabulary = document["model"]["vocab"]
        vocabulary["bc"], vocabulary["ab"] = 900, 700
        Path(identity.path).write_text(json.dumps(document))
        identity = resolve_tokenizer(TokenizerConfig(path=identity.path, add_eos=False))
        for name in FAST:
            ids, _ = load_engine(using(name, identity)).encode(["abc", "ab"])
            assert ids.tolist() == [ord("a"), 900, 700]

    def test_a_special_token_in_the_vocabulary_is_never_merged_to(self, tmp_path: Path) -> None:
        tokenizer = from_merges([(b"<", b"|")])
        tokenizer.add_special_tokens(["<|", "<||>"])
        identity = saved(tokenizer, tmp_path / "v")
        for name in FAST:
            assert (
                prove_equal(
                    load_engine(using(name, identity)),
                    reference_engine(identity),
                    ["<|", "<||>", "<"],
                )
                is None
            )
