"""The vocabulary: where it is, what it adds to a document, and the engine that encodes with it."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import json
import re
from array import array
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from tokenizers import Tokenizer

from pipeline.config import TokenizerConfig

_FILE = "tokenizer.json"
_SIDE_FILES = ("tokenizer_config.json", "special_tokens_map.json")
_COMMON_NAMES = {
    "bos": ("<s>", "<|begin_of_text|>", "<bos>", "<|startoftext|>"),
    "eos": ("</s>", "<|endoftext|>", "<|end_of_text|>", "<eos>"),
}
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")


class TokenizerError(ValueError):
    """The tokenizer cannot be used as configured; the message says what to change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerIdentity:
    """All that token ids depend on, and where the vocabulary is on this machine.

    `vocab_size` is one more than the largest id. `bos_id` and `eos_id` are added at a document's
    true ends; None: not added.
    """

    name: str
    path: str
    sha256: str
    engine: str
    vocab_size: int
    bos_id: int | None
    eos_id: int | None
    special_tokens_in_text: str

    @property
    def dtype(self) -> str:
        """The smallest type on disk that holds every id."""
        return "uint16" if self.vocab_size <= 1 << 16 else "uint32"

    def as_dict(self) -> dict[str, Any]:
        """What source.json says of the tokenizer: everything but the local path."""
        fields = asdict(self)
        del fields["path"]
        return fields

    def key_dict(self) -> dict[str, Any]:
        """What a store's key depends on: not how the vocabulary is called."""
        fields = self.as_dict()
        del fields["name"]
        return fields


class Engine(Protocol):
    """Text to ids, in the calling process; adds no special tokens."""

    def encode(self, texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
        """Encode documents.

        Returns:
            their ids back to back, of the identity's dtype, and how many each has, int64, (texts,).
        """
        ...

    def decode(self, ids: np.ndarray) -> str:
        """The text of ids, special tokens included; for people, not for reading back."""
        ...


class _HuggingFaceEngine:
    def __init__(self, tokenizer: Tokenizer, dtype: str):
        self._tokenizer = tokenizer
        self._dtype = np.dtype(dtype).newbyteorder("<")
        self._typecode = {2: "H", 4: "I"}[self._dtype.itemsize]

    def encode(self, texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
        encodings = self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        # An array.array takes a list of ints three times as fast as numpy does.
        ids = [array(self._typecode, encoding.ids) for encoding in encodings]
        lengths = np.fromiter(map(len, ids), np.int64, count=len(ids))
        return np.frombuffer(b"".join(ids), self._dtype), lengths

    def decode(self, ids: np.ndarray) -> str:
        return self._tokenizer.decode(ids.tolist(), skip_special_tokens=False)


def resolve_tokenizer(config: TokenizerConfig) -> TokenizerIdentity:
    """Find the vocabulary and what is added at a document's ends.

    BOS and EOS are the configured strings, else those of a tokenizer_config.json or
    special_tokens_map.json beside the vocabulary, else a common name that the vocabulary has.

    Raises:
        TokenizerError: no vocabulary there, or no BOS or EOS to add.
    """
    name, path = _locate(config.path)
    content = _read(path)
    tokenizer = _parse(content, path)
    vocabulary = tokenizer.get_vocab(with_added_tokens=True)
    if not vocabulary:
        raise TokenizerError(f"{path} has no tokens; give another tokenizer")
    identity = TokenizerIdentity(
        name=name,
        path=str(path),
        sha256=hashlib.sha256(content).hexdigest(),
        engine=config.engine,
        vocab_size=max(vocabulary.values()) + 1,
        bos_id=_end_id("bos", config.bos_token, path, vocabulary) if config.add_bos else None,
        eos_id=_end_id("eos", config.eos_token, path, vocabulary) if config.add_eos else None,
        special_tokens_in_text=config.special_tokens_in_text,
    )
    load_engine(identity)
    return identity


@lru_cache(maxsize=8)
def load_engine(identity: TokenizerIdentity) -> Engine:
    """The engine for an identity, loaded once a process.

    Raises:
        TokenizerError: the file is not the one the identity was made from, or text could forge the
            ids that mark a document's ends though it must not.
    """
    path = Path(identity.path)
    content = _read(path)
    found = hashlib.sha256(content).hexdigest()
    if found != identity.sha256:
        raise TokenizerError(
            f"{path} has SHA-256 {found} but {identity.sha256} was expected; every worker must see "
            "the vocabulary that the job started with"
        )
    tokenizer = _parse(content, path)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    if identity.special_tokens_in_text == "text":
        tokenizer.encode_special_tokens = True
        _refuse_forgery(tokenizer, identity)
    return _HuggingFaceEngine(tokenizer, identity.dtype)


def decode(identity: TokenizerIdentity, ids: np.ndarray) -> str:
    """The text of a document's ids, or of a part of them, with special tokens as their strings."""
    return load_engine(identity).decode(ids)


def policy_text(identity: TokenizerIdentity) -> str:
    """One line that says which ids are added where."""
    ends = [
        f"{label} {'not added' if token_id is None else f'id {token_id} {place}'}"
        for label, token_id, place in (
            ("BOS", identity.bos_id, "before every document"),
            ("EOS", identity.eos_id, "after every document"),
        )
    ]
    reading = {"text": "ordinary text", "tokens": "encoded as these tokens"}
    return (
        f"{'; '.join(ends)}; special tokens' strings in the text are "
        f"{reading[identity.special_tokens_in_text]}"
    )


def _locate(configured: str) -> tuple[str, Path]:
    """What to call the vocabulary, and its file."""
    path = Path(configured)
    if configured.startswith("package:"):
        return configured, _in_package(configured)
    if path.is_dir():
        path = path / _FILE
    if path.is_file():
        path = path.absolute()  # not resolve: a hub cache links each file elsewhere
        return path.parent.name if path.name == _FILE else path.name, path
    if path.suffix == ".json" or not _HUB_NAME.fullmatch(configured):
        raise TokenizerError(
            f"tokenizer.path is {configured!r} but {path} does not exist; give a {_FILE}, a "
            "directory that holds one, package:NAME or a hub name"
        )
    return configured, _from_hub(configured)


def _in_package(configured: str) -> Path:
    """The one tokenizer.json of an installed package, found without importing it."""
    package = configured.removeprefix("package:")
    try:
        spec = importlib.util.find_spec(package) if package.isidentifier() else None
    except (ImportError, ValueError):
        spec = None
    if spec is None or not spec.submodule_search_locations:
        raise TokenizerError(
            f"tokenizer.path is {configured!r} but no package {package!r} is installed; install it "
            "or give another path"
        )
    found = sorted(
        file for place in spec.submodule_search_locations for file in Path(place).rglob(_FILE)
    )
    if len(found) != 1:
        places = ", ".join(map(str, found)) or "none"
        raise TokenizerError(
            f"tokenizer.path is {configured!r}; the package must hold one {_FILE} but holds "
            f"{places}; give the file's own path"
        )
    return found[0]


def _from_hub(name: str) -> Path:
    missing = f"tokenizer.path {name!r} is neither a file nor a directory here"
    try:
        hub: Any = importlib.import_module("huggingface_hub")
    except ImportError as error:
        raise TokenizerError(
            f"{missing}, and a hub name needs huggingface_hub; pip install 'steelyard[hf]' or give "
            f"a local {_FILE}"
        ) from error
    try:
        path = Path(hub.hf_hub_download(name, _FILE))
    except Exception as error:
        raise TokenizerError(
            f"{missing}, and the hub did not give it ({type(error).__name__}: {error}); download "
            f"it once where there is a network, or give a local {_FILE}"
        ) from error
    for side_file in _SIDE_FILES:
        try:
            hub.hf_hub_download(name, side_file)
        except Exception:
            continue  # many tokenizers have none, and the hub's errors for that differ
    return path


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise TokenizerError(f"{path} cannot be read: {error.strerror}") from error


def _parse(content: bytes, path: Path) -> Tokenizer:
    try:
        return Tokenizer.from_buffer(content)
    except Exception as error:  # the library raises bare Exception
        raise TokenizerError(
            f"{path} is not a vocabulary that tokenizers can load: {error}"
        ) from error


def _end_id(end: str, configured: str | None, path: Path, vocabulary: dict[str, int]) -> int:
    """The id of the token that marks a document's beginning or end."""
    field = f"{end}_token"
    named = configured or _beside(path, field)
    candidates = (named,) if named else _COMMON_NAMES[end]
    for token in candidates:
        if token in vocabulary:
            return vocabulary[token]
    found = f"{named!r} is not in the vocabulary" if named else "none is known for this vocabulary"
    raise TokenizerError(
        f"tokenizer.add_{end} is true but {found} ({path}); set tokenizer.{field} to one of its "
        f"tokens, or tokenizer.add_{end} = false"
    )


def _beside(path: Path, field: str) -> str | None:
    """A token's string from the files beside the vocabulary."""
    for name in _SIDE_FILES:
        try:
            value = json.loads((path.parent / name).read_bytes()).get(field)
        except (OSError, ValueError, AttributeError):
            continue
        token = value.get("content") if isinstance(value, dict) else value
        if isinstance(token, str) and token:
            return token
    return None


def _refuse_forgery(tokenizer: Tokenizer, identity: TokenizerIdentity) -> None:
    for token_id in (identity.bos_id, identity.eos_id):
        if token_id is None:
            continue
        token = tokenizer.id_to_token(token_id)
        if token_id in tokenizer.encode(f"a {token} b", add_special_tokens=False).ids:
            raise TokenizerError(
                f"the text {token!r} would be encoded as id {token_id}, which marks a document's "
                "end, because the vocabulary does not call it special; choose another token or "
                'set tokenizer.special_tokens_in_text = "tokens"'
            )
