from __future__ import annotations

import json
import pickle
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tokenizers import AddedToken, Tokenizer

from pipeline.settings.documents import TokenizerConfig
from pipeline.tokenizer import reference
from pipeline.tokenizer.engine import decode, load_engine
from pipeline.tokenizer.identity import TokenizerError, TokenizerIdentity, policy_text
from pipeline.tokenizer.resolve import resolve_tokenizer
from tests.corpora import BOS, BOS_ID, EOS, EOS_ID, some_texts, tiny_identity, tiny_tokenizer
from tests.pipeline.vocabularies import DEEPSEEK

DEEPSEEK_EOS = "<\uff5cend\u2581of\u2581sentence\uff5c>"


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A directory of its own with the tiny vocabulary, to be changed by the test."""
    return Path(shutil.copytree(tiny_tokenizer().parent, tmp_path / "mine"))


def edit(directory: Path, **fields: Any) -> None:
    path = directory / "tokenizer.json"
    path.write_text(json.dumps({**json.loads(path.read_bytes()), **fields}))


def ids_of(identity: TokenizerIdentity, text: str) -> list[int]:
    return load_engine(identity).encode([text])[0].tolist()


class TestWhere:
    def test_a_file_and_its_directory_are_the_same_vocabulary(self, directory: Path) -> None:
        by_file = resolve_tokenizer(TokenizerConfig(path=str(directory / "tokenizer.json")))
        by_directory = resolve_tokenizer(TokenizerConfig(path=str(directory)))
        assert by_file == by_directory
        assert by_file.name == "mine"

    def test_a_linked_file_is_known_by_the_files_beside_the_link(self, directory: Path) -> None:
        blobs = directory.parent / "blobs"
        blobs.mkdir()
        (directory / "tokenizer.json").rename(blobs / "0123")
        (directory / "tokenizer.json").symlink_to(blobs / "0123")
        (directory / "tokenizer_config.json").write_text(json.dumps({"eos_token": BOS}))
        assert resolve_tokenizer(TokenizerConfig(path=str(directory))).eos_id == BOS_ID

    def test_a_package_is_searched_without_being_imported(
        self, directory: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        package = directory.rename(directory.with_name("vocabulary_package"))
        (package / "__init__.py").write_text("raise RuntimeError('imported')")
        monkeypatch.syspath_prepend(str(package.parent))
        identity = resolve_tokenizer(TokenizerConfig(path="package:vocabulary_package"))
        assert identity.name == "package:vocabulary_package"
        assert identity.sha256 == tiny_identity().sha256
        assert "vocabulary_package" not in sys.modules
        shutil.copytree(tiny_tokenizer().parent, package / "second")
        with pytest.raises(TokenizerError, match=r"must hold one tokenizer\.json but holds .*,"):
            resolve_tokenizer(TokenizerConfig(path="package:vocabulary_package"))

    @pytest.mark.parametrize(
        ("path", "message"),
        [
            ("package:nowhere_at_all", "no package 'nowhere_at_all' is installed"),
            ("package:../x", "no package '..' is installed"),
            ("package:json/no.tiktoken", "json/no.tiktoken does not exist; give a file of the"),
            ("nowhere/o200k_base.tiktoken.gz", "does not exist; give a tokenizer.json"),
            ("package:wave", "no package 'wave' is installed"),
            ("package:json", "holds none"),
            ("nowhere/tokenizer.json", "does not exist; give a tokenizer.json, a directory"),
            ("./nowhere", "does not exist"),
        ],
    )
    def test_what_is_not_there_is_an_error_that_lists_the_choices(
        self, path: str, message: str
    ) -> None:
        with pytest.raises(TokenizerError, match=message):
            resolve_tokenizer(TokenizerConfig(path=path))

    def test_another_name_is_looked_up_on_the_hub(
        self, directory: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        asked = []

        def hf_hub_download(name: str, file: str) -> str:
            asked.append((name, file))
            if not (directory / file).exists():
                raise OSError("no such file on the hub")
            return str(directory / file)

        hub = SimpleNamespace(hf_hub_download=hf_hub_download)
        monkeypatch.setitem(sys.modules, "huggingface_hub", hub)  # type: ignore[arg-type]
        assert resolve_tokenizer(TokenizerConfig(path="some/model")).name == "some/model"
        assert ("some/model", "tokenizer_config.json") in asked
        (directory / "tokenizer.json").unlink()
        with pytest.raises(TokenizerError, match=r"hub did not give it .*no such file.*network"):
            resolve_tokenizer(TokenizerConfig(path="some/model"))

    def test_a_hub_name_without_the_hub_library_says_what_to_install(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(sys.modules, "huggingface_hub", None)
        with pytest.raises(TokenizerError, match=r"pip install 'steelyard\[hf\]'"):
            resolve_tokenizer(TokenizerConfig(path="some/model"))

    def test_a_file_of_another_kind_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "tokenizer.json").write_text("{}")
        with pytest.raises(TokenizerError, match="is not a vocabulary that tokenizers can load"):
            resolve_tokenizer(TokenizerConfig(path=str(tmp_path)))


class TestEnds:
    def resolve(self, directory: Path, **settings: Any) -> TokenizerIdentity:
        return resolve_tokenizer(TokenizerConfig(path=str(directory), **settings))

    def test_nothing_is_looked_for_that_is_not_added(self, directory: Path) -> None:
        identity = self.resolve(directory, add_eos=False, eos_token="not there")
        assert (identity.bos_id, identity.eos_id) == (None, None)

    def test_the_configured_string_is_first_then_the_files_beside_then_a_common_name(
        self, directory: Path
    ) -> None:
        assert self.resolve(directory).eos_id == EOS_ID  # <|endoftext|> is a common name
        special = directory / "special_tokens_map.json"
        special.write_text(json.dumps({"eos_token": BOS}))
        assert self.resolve(directory).eos_id == BOS_ID
        config = directory / "tokenizer_config.json"
        config.write_text(json.dumps({"eos_token": {"content": EOS}, "bos_token": BOS}))
        assert self.resolve(directory).eos_id == EOS_ID
        assert self.resolve(directory, add_bos=True).bos_id == BOS_ID
        assert self.resolve(directory, eos_token=BOS).eos_id == BOS_ID

    def test_an_end_that_cannot_be_found_names_the_fields_to_set(self, directory: Path) -> None:
        with pytest.raises(
            TokenizerError, match=r"none is known.*set tokenizer\.bos_token to .*or t"
        ):
            self.resolve(directory, add_bos=True)
        with pytest.raises(TokenizerError, match=r"'</x>' is not in the vocabulary.*eos_token"):
            self.resolve(directory, eos_token="</x>")

    def test_a_broken_file_beside_the_vocabulary_is_passed_over(self, directory: Path) -> None:
        for content in ("{", "[]", '{"eos_token": null}', '{"eos_token": {"id": 3}}'):
            (directory / "tokenizer_config.json").write_text(content)
            assert self.resolve(directory).eos_id == EOS_ID


class TestIdentity:
    def test_the_type_holds_every_id(self) -> None:
        for vocab_size, dtype in ((312, "uint16"), (65536, "uint16"), (65537, "uint32")):
            assert replace(tiny_identity(), vocab_size=vocab_size).dtype == dtype

    def test_vocab_size_is_one_more_than_the_largest_id(self) -> None:
        vocabulary = Tokenizer.from_file(str(tiny_tokenizer())).get_vocab()
        assert tiny_identity().vocab_size == max(vocabulary.values()) + 1

    def test_what_is_stored_does_not_know_this_machine(self) -> None:
        identity = tiny_identity(add_bos=True)
        assert pickle.loads(pickle.dumps(identity)) == identity
        assert identity.as_dict() == {
            "name": "tiny",
            "sha256": identity.sha256,
            "vocab_size": identity.vocab_size,
            "bos_id": BOS_ID,
            "eos_id": EOS_ID,
            "special_tokens_in_text": "text",
            "pattern": None,
            "special_tokens": {},
        }
        assert set(identity.as_dict()) - set(identity.key_dict()) == {"name"}

    def test_the_policy_is_one_line_that_says_what_is_added_where(self) -> None:
        assert policy_text(tiny_identity()) == (
            "BOS not added; EOS id 1 after every document; special tokens' strings in the "
            "text are ordinary text"
        )
        both = replace(tiny_identity(add_bos=True), special_tokens_in_text="tokens")
        assert policy_text(both) == (
            "BOS id 0 before every document; EOS id 1 after every document; special tokens' "
            "strings in the text are encoded as these tokens"
        )


class TestEngine:
    def test_ids_are_those_of_the_library_one_document_at_a_time(self) -> None:
        texts = [*some_texts(50), "", " ", "\n\n", "\U0001f40b" * 9]
        library = Tokenizer.from_file(str(tiny_tokenizer()))
        ids, lengths = load_engine(tiny_identity()).encode(texts)
        one_by_one = [library.encode(text, add_special_tokens=False).ids for text in texts]
        assert ids.tolist() == [token for document in one_by_one for token in document]
        assert lengths.tolist() == [len(document) for document in one_by_one]
        assert (ids.dtype, lengths.dtype) == (np.uint16, np.int64)
        assert 0 in lengths

    def test_no_documents_are_no_ids(self) -> None:
        ids, lengths = load_engine(tiny_identity()).encode([])
        assert (ids.shape, lengths.shape, ids.dtype) == ((0,), (0,), np.uint16)

    def test_ids_that_need_it_have_four_bytes(self) -> None:
        identity = replace(tiny_identity(), vocab_size=1 << 17)
        ids, _ = load_engine(identity).encode(["the steelyard"])
        assert ids.dtype == np.dtype("<u4")
        assert ids.tolist() == ids_of(tiny_identity(), "the steelyard")

    def test_text_cannot_forge_a_special_token(self, directory: Path) -> None:
        text = f"a {EOS} b {BOS}"
        as_text = resolve_tokenizer(TokenizerConfig(path=str(directory)))
        as_tokens = resolve_tokenizer(
            TokenizerConfig(path=str(directory), special_tokens_in_text="tokens")
        )
        assert not {BOS_ID, EOS_ID} & set(ids_of(as_text, text))
        assert {BOS_ID, EOS_ID} <= set(ids_of(as_tokens, text))
        library = Tokenizer.from_file(as_text.path)
        assert library.decode(ids_of(as_text, text)) == text  # nothing is lost by it

    def test_an_end_that_text_could_forge_all_the_same_is_refused(self, directory: Path) -> None:
        tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
        tokenizer.add_tokens([AddedToken("</end>", special=False)])
        tokenizer.save(str(directory / "tokenizer.json"))
        settings: dict[str, Any] = {"path": str(directory), "eos_token": "</end>"}
        with pytest.raises(TokenizerError, match=r"'</end>' would be encoded as id .*\"tokens\""):
            resolve_tokenizer(TokenizerConfig(**settings))
        resolve_tokenizer(TokenizerConfig(**settings, special_tokens_in_text="tokens"))

    def test_truncation_padding_and_added_ends_of_the_file_are_turned_off(
        self, directory: Path
    ) -> None:
        tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
        tokenizer.enable_truncation(4)
        tokenizer.enable_padding(length=16)
        tokenizer.save(str(directory / "tokenizer.json"))
        ends = [{"SpecialToken": {"id": EOS, "type_id": 0}}]
        sequence = [{"Sequence": {"id": "A", "type_id": 0}}]
        edit(
            directory,
            post_processor={
                "type": "TemplateProcessing",
                "single": sequence + ends,
                "pair": sequence + ends,
                "special_tokens": {EOS: {"id": EOS, "ids": [EOS_ID], "tokens": [EOS]}},
            },
        )
        padded = Tokenizer.from_file(str(directory / "tokenizer.json"))
        text = "steelyard " * 9
        assert len(padded.encode(text).ids) == 16
        identity = resolve_tokenizer(TokenizerConfig(path=str(directory)))
        for each in (text, "x"):
            assert ids_of(identity, each) == ids_of(tiny_identity(), each)

    def test_a_vocabulary_that_changed_after_the_job_began_stops_it(self, directory: Path) -> None:
        identity = resolve_tokenizer(TokenizerConfig(path=str(directory)))
        load_engine.cache_clear()
        reference._load.cache_clear()
        edit(directory, changed=True)
        with pytest.raises(TokenizerError, match="every worker must see the vocabulary"):
            load_engine(identity)
        (directory / "tokenizer.json").unlink()
        with pytest.raises(TokenizerError, match="cannot be read"):
            load_engine(identity)

    def test_ids_can_be_read_by_people(self) -> None:
        ids, _ = load_engine(tiny_identity()).encode(["a \u6f22 load"])
        assert decode(tiny_identity(), np.append(ids, np.uint16(EOS_ID))) == f"a \u6f22 load{EOS}"

    def test_it_is_loaded_once_a_process(self) -> None:
        assert load_engine(tiny_identity()) is load_engine(replace(tiny_identity()))


class TestARealVocabulary:
    def test_its_ends_are_found_and_cannot_be_forged(self) -> None:
        identity = resolve_tokenizer(TokenizerConfig(path=DEEPSEEK, add_bos=True))
        assert (identity.bos_id, identity.eos_id, identity.dtype) == (0, 1, "uint32")
        text = f"a {DEEPSEEK_EOS} b"
        ids = ids_of(identity, text)
        assert not {0, 1} & set(ids)
        library = Tokenizer.from_file(identity.path)
        assert library.decode(ids) == text
        assert 1 in library.encode(text, add_special_tokens=False).ids  # else this shows nothing
