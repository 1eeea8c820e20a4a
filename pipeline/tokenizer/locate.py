"""Where a vocabulary is, and reading it."""

from __future__ import annotations

import importlib
import importlib.util
import re
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from pipeline.tokenizer.identity import TokenizerError

_FILE = "tokenizer.json"
_SUFFIXES = (".json", ".tiktoken", ".gz")
SIDE_FILES = ("tokenizer_config.json", "special_tokens_map.json")
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")


def locate(configured: str) -> tuple[str, Path]:
    """What to call a vocabulary, and its file.

    Raises:
        TokenizerError: none is there.
    """
    path = Path(configured)
    if configured.startswith("package:"):
        return configured, _in_package(configured)
    if path.is_dir():
        path = path / _FILE
    if path.is_file():
        path = path.absolute()  # not resolve: a hub cache links each file elsewhere
        return path.parent.name if path.name == _FILE else path.name, path
    if path.suffix in _SUFFIXES or not _HUB_NAME.fullmatch(configured):
        raise TokenizerError(
            f"tokenizer.path is {configured!r} but {path} does not exist; give a {_FILE}, a "
            "directory that holds one, a .tiktoken file, a tekken.json, package:NAME or a hub name"
        )
    return configured, _from_hub(configured)


def _in_package(configured: str) -> Path:
    """A file of an installed package, else its one tokenizer.json; nothing is imported."""
    package, _, inside = configured.removeprefix("package:").partition("/")
    try:
        spec = importlib.util.find_spec(package) if package.isidentifier() else None
    except (ImportError, ValueError):
        spec = None
    if spec is None or not spec.submodule_search_locations:
        raise TokenizerError(
            f"tokenizer.path is {configured!r} but no package {package!r} is installed; install it "
            "or give another path"
        )
    places = list(map(Path, spec.submodule_search_locations))
    if inside:
        files = [place / inside for place in places if (place / inside).is_file()]
        if not files:
            raise TokenizerError(
                f"tokenizer.path is {configured!r} but {places[0] / inside} does not exist; give "
                f"a file of the package, or package:{package} for its {_FILE}"
            )
        return files[0]
    found = sorted(file for place in places for file in place.rglob(_FILE))
    if len(found) != 1:
        holds = ", ".join(map(str, found)) or "none"
        raise TokenizerError(
            f"tokenizer.path is {configured!r}; the package must hold one {_FILE} but holds "
            f"{holds}; give the file's own path, or package:{package}/PATH/IN/IT"
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
    for side_file in SIDE_FILES:
        try:
            hub.hf_hub_download(name, side_file)
        except Exception:
            continue  # many tokenizers have none, and the hub's errors for that differ
    return path


def read(path: Path) -> bytes:
    """A vocabulary file's content."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise TokenizerError(f"{path} cannot be read: {error.strerror}") from error


def parse(content: bytes, path: Path) -> Tokenizer:
    """A tokenizer.json as the library has it; `path` is what errors call it."""
    try:
        return Tokenizer.from_buffer(content)
    except Exception as error:  # the library raises bare Exception
        raise TokenizerError(
            f"{path} is not a vocabulary that tokenizers can load: {error}"
        ) from error
