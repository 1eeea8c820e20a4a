"""Texts that an engine would read otherwise go to the reference."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import AddedToken, Tokenizer, normalizers

from pipeline.settings.documents import TokenizerConfig
from pipeline.tokenizer import splintr_encoder, tiktoken_encoder
from pipeline.tokenizer.engine import load_engine
from pipeline.tokenizer.identity import TokenizerIdentity
from pipeline.tokenizer.proof import prove_equal, prove_on_made_texts
from pipeline.tokenizer.reference import reference_engine
from pipeline.tokenizer.referral import ReferringEngine, may_change_by_nfc
from pipeline.tokenizer.resolve import resolve_tokenizer
from tests.corpora import EOS, EOS_ID, tiny_tokenizer
from tests.pipeline.vocabularies import DEEPSEEK, FAST, KATAKANA, changed, real, saved, using


def tiny(tmp_path: Path, **settings: Any) -> TokenizerIdentity:
    """The tiny vocabulary in a place of its own."""
    shutil.copy(tiny_tokenizer(), tmp_path)
    return resolve_tokenizer(TokenizerConfig(path=str(tmp_path), eos_token=EOS, **settings))


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
