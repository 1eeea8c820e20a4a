"""A configuration to the identity of its tokenizer."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from pipeline.settings.documents import TokenizerConfig
from pipeline.tokenizer.identity import TokenizerError, TokenizerIdentity, without_vocabulary
from pipeline.tokenizer.locate import SIDE_FILES, locate, parse, read
from pipeline.tokenizer.rank_files import is_rank_file, parse_rank_file
from pipeline.tokenizer.reference import reference_engine

_COMMON_NAMES = {
    "bos": ("<s>", "<|begin_of_text|>", "<bos>", "<|startoftext|>"),
    "eos": ("</s>", "<|endoftext|>", "<|end_of_text|>", "<eos>"),
}


def resolve_tokenizer(config: TokenizerConfig) -> TokenizerIdentity:
    """Find the vocabulary and what is added at a document's ends; or only its size is known.

    BOS and EOS are the configured strings, else those of a tokenizer_config.json or
    special_tokens_map.json beside the vocabulary, else a common name that the vocabulary has.

    Raises:
        TokenizerError: no vocabulary there, or no BOS or EOS to add.
    """
    if config.path is None:
        return without_vocabulary(config.vocab_size or 0)
    name, path = locate(config.path)
    content = read(path)
    pattern, special_tokens = None, dict[str, int]()
    if is_rank_file(path):
        file = parse_rank_file(
            content, path, pattern=config.pattern, special_tokens=config.special_tokens
        )
        pattern, special_tokens = file.pattern, file.special_tokens
        vocabulary, vocab_size = special_tokens, file.vocab_size
    else:
        _refuse_rank_settings(config, path)
        vocabulary = parse(content, path).get_vocab(with_added_tokens=True)
        if not vocabulary:
            raise TokenizerError(f"{path} has no tokens; give another tokenizer")
        vocab_size = max(vocabulary.values()) + 1
    identity = TokenizerIdentity(
        name=name,
        path=str(path),
        sha256=hashlib.sha256(content).hexdigest(),
        vocab_size=vocab_size,
        bos_id=_end_id("bos", config.bos_token, path, vocabulary) if config.add_bos else None,
        eos_id=_end_id("eos", config.eos_token, path, vocabulary) if config.add_eos else None,
        special_tokens_in_text=config.special_tokens_in_text,
        pattern=pattern,
        special_tokens=tuple(sorted(special_tokens.items())),
    )
    if pattern is None:
        reference_engine(identity)  # of ranks it takes seconds, and an end is no text there
    return identity


def _refuse_rank_settings(config: TokenizerConfig, path: Path) -> None:
    for field in ("pattern", "special_tokens"):
        if getattr(config, field):
            raise TokenizerError(
                f"tokenizer.{field} is for .tiktoken and tekken files, but {path} says by itself "
                "what it is; remove that setting"
            )


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
        f"tokens (of a file of ranks: in tokenizer.special_tokens), or tokenizer.add_{end} = false"
    )


def _beside(path: Path, field: str) -> str | None:
    """A token's string from the files beside the vocabulary."""
    for name in SIDE_FILES:
        try:
            value = json.loads((path.parent / name).read_bytes()).get(field)
        except (OSError, ValueError, AttributeError):
            continue
        token = value.get("content") if isinstance(value, dict) else value
        if isinstance(token, str) and token:
            return token
    return None
