"""The vocabulary of an identity: the reference that encodes with it, and its plain description."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from pipeline.tokenizer.byte_level import (
    Ranks,
    check_model,
    needs_nfc,
    ranks_of,
    splits_of,
)
from pipeline.tokenizer.identity import TokenizerError, TokenizerIdentity
from pipeline.tokenizer.locate import parse, read
from pipeline.tokenizer.rank_files import RankFile, is_rank_file, parse_rank_file


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ByteLevelBPE:
    """A byte-level BPE vocabulary, for libraries that know no tokenizer.json.

    `splits` are regular expressions that cut text, one after the other; `nfc`: text is brought to
    NFC before. `added` are the strings that become a token wherever text has them, before all else.
    The merges are in one of `content`, a tokenizer.json, and `rank_file`.
    """

    splits: tuple[str, ...]
    nfc: bool
    added: tuple[str, ...]
    content: dict[str, Any] | None
    rank_file: RankFile | None

    def ranks(self) -> Ranks:
        """Tokens in the order in which they merge; takes a second for 100,000.

        Raises:
            EngineUnavailable: no such order merges as the vocabulary does.
        """
        if self.rank_file is None:
            return ranks_of(self.content or {})
        ranks = self.rank_file.ranks
        return Ranks(
            ranks=ranks,
            ids=self.rank_file.first_id + np.arange(max(ranks.values()) + 1, dtype=np.int64),
        )


def load_reference(identity: TokenizerIdentity) -> Tokenizer:
    """What says which ids are right: the vocabulary in the `tokenizers` library.

    Raises:
        TokenizerError: the file is not the one the identity was made from, or text could forge the
            ids that mark a document's ends though it must not.
    """
    content, path = _content_of(identity), Path(identity.path)
    if is_rank_file(path):
        tokenizer = _rank_file(content, identity).reference()
    else:
        tokenizer = parse(content, path)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    if identity.special_tokens_in_text == "text":
        tokenizer.encode_special_tokens = True
        _refuse_forgery(tokenizer, identity)
    return tokenizer


def describe(identity: TokenizerIdentity) -> ByteLevelBPE:
    """The vocabulary as plain byte-level BPE.

    Raises:
        EngineUnavailable: it is of another kind, or does more to a text than that.
        TokenizerError: the file is not the one the identity was made from.
    """
    content, path = _content_of(identity), Path(identity.path)
    as_text = identity.special_tokens_in_text == "text"
    if is_rank_file(path):
        file = _rank_file(content, identity)
        return ByteLevelBPE(
            splits=(file.pattern,),
            nfc=False,
            added=() if as_text else tuple(file.special_tokens),
            content=None,
            rank_file=file,
        )
    document = json.loads(content)
    check_model(document)
    return ByteLevelBPE(
        splits=splits_of(document),
        nfc=needs_nfc(document),
        added=tuple(
            token["content"]
            for token in document.get("added_tokens") or []
            if not (as_text and token["special"])
        ),
        content=document,
        rank_file=None,
    )


def _content_of(identity: TokenizerIdentity) -> bytes:
    if not identity.path:
        raise TokenizerError(
            "there is no vocabulary to encode or decode with: the configuration has "
            f"tokenizer.vocab_size = {identity.vocab_size} and no tokenizer.path"
        )
    content = read(Path(identity.path))
    found = hashlib.sha256(content).hexdigest()
    if found != identity.sha256:
        raise TokenizerError(
            f"{identity.path} has SHA-256 {found} but {identity.sha256} was expected; every worker "
            "must see the vocabulary that the job started with"
        )
    return content


def _rank_file(content: bytes, identity: TokenizerIdentity) -> RankFile:
    return parse_rank_file(
        content,
        Path(identity.path),
        pattern=identity.pattern,
        special_tokens=dict(identity.special_tokens),
    )


def _refuse_forgery(tokenizer: Tokenizer, identity: TokenizerIdentity) -> None:
    for token_id in (identity.bos_id, identity.eos_id):
        if token_id is None:
            continue
        token = tokenizer.id_to_token(token_id)
        for text in (token, f"a {token} b", f"a{token}b"):
            if token_id in tokenizer.encode(text, add_special_tokens=False).ids:
                raise TokenizerError(
                    f"the text {token!r} would be encoded as id {token_id}, which marks a "
                    "document's end, because the vocabulary does not call it special; choose "
                    'another token or set tokenizer.special_tokens_in_text = "tokens"'
                )
