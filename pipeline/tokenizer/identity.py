"""All that token ids depend on."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import tokenizers

NO_ENGINE = "none"
"""`engine` where there is no vocabulary; `name`, `path` and `sha256` are empty then."""


class TokenizerError(ValueError):
    """The tokenizer cannot be used as configured; the message says what to change."""


class EngineUnavailable(ValueError):
    """An engine cannot be used, here or for this vocabulary; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerIdentity:
    """All that token ids depend on, where the vocabulary is on this machine, and what encodes.

    `vocab_size` is one more than the largest id. `bos_id` and `eos_id` are added at a document's
    true ends; None: not added. `pattern` and `special_tokens` are what a file of ranks does not
    say; for a tokenizer.json None and empty. `engine` and `engine_version` are the library that
    encodes: all give the same ids, so nothing is keyed by them.
    """

    name: str
    path: str
    sha256: str
    vocab_size: int
    bos_id: int | None
    eos_id: int | None
    special_tokens_in_text: str
    pattern: str | None = None
    special_tokens: tuple[tuple[str, int], ...] = ()
    engine: str = "hf"
    engine_version: str = tokenizers.__version__

    @property
    def dtype(self) -> str:
        """The smallest type on disk that holds every id."""
        return "uint16" if self.vocab_size <= 1 << 16 else "uint32"

    def as_dict(self) -> dict[str, Any]:
        """What source.json says of the tokenizer: all but the local path and the engine."""
        fields = asdict(self)
        for field in ("path", "engine", "engine_version"):
            del fields[field]
        return {**fields, "special_tokens": dict(self.special_tokens)}

    def key_dict(self) -> dict[str, Any]:
        """What a store's key depends on: not how the vocabulary is called."""
        fields = self.as_dict()
        del fields["name"]
        return fields


def without_vocabulary(vocab_size: int) -> TokenizerIdentity:
    """The identity where every source brings tokens, of ids below `vocab_size`."""
    return TokenizerIdentity(
        name="",
        path="",
        sha256="",
        engine=NO_ENGINE,
        engine_version="",
        vocab_size=vocab_size,
        bos_id=None,
        eos_id=None,
        special_tokens_in_text="text",
    )


def policy_text(identity: TokenizerIdentity) -> str:
    """One line that says which ids are added where."""
    if identity.engine == NO_ENGINE:
        return f"none: sources bring ids below {identity.vocab_size}"
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
