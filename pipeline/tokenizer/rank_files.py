"""Vocabularies that are files of ranks: tiktoken's and Mistral's tekken."""

from __future__ import annotations

import base64
import binascii
import difflib
import gzip
import json
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

from pipeline.tokenizer.byte_level import bytes_of, letters_of
from pipeline.tokenizer.identity import TokenizerError
from pipeline.tokenizer.patterns import NAMED, SPECIAL_TOKENS, guess_name

_TIKTOKEN = (".tiktoken", ".tiktoken.gz")
_TEKKEN_SPECIAL = {"<unk>": 0, "<s>": 1, "</s>": 2}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RankFile:
    """Byte-level BPE as a rank a token; a token's id is `first_id` + its rank.

    A piece of text that is a token becomes it; else, of all neighbours whose concatenation is a
    token, the pair with the lowest rank merges, until none is left.
    """

    pattern: str
    ranks: dict[bytes, int]
    first_id: int
    special_tokens: dict[str, int]

    @property
    def vocab_size(self) -> int:
        """One more than the largest id."""
        largest = self.first_id + max(self.ranks.values())
        return 1 + max([largest, *self.special_tokens.values()])

    def reference(self) -> Tokenizer:
        """The same vocabulary for the `tokenizers` library; takes seconds for 200,000 ranks.

        Raises:
            TokenizerError: the pattern is no regular expression.
        """
        letters = {token: letters_of(token) for token in self.ranks}
        merges = [
            (letters[left], letters[right])
            for token in sorted(self.ranks, key=self.ranks.__getitem__)
            for cut in range(1, len(token))
            if (left := token[:cut]) in letters and (right := token[cut:]) in letters
        ]
        vocabulary = {letters[token]: self.first_id + rank for token, rank in self.ranks.items()}
        model = models.BPE(
            vocab={**vocabulary, **self.special_tokens}, merges=merges, ignore_merges=True
        )
        tokenizer = Tokenizer(model)
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(_regex(self.pattern), "isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )
        tokenizer.decoder = decoders.ByteLevel()
        ordered = sorted(self.special_tokens, key=self.special_tokens.__getitem__)
        tokenizer.add_special_tokens([AddedToken(t, normalized=False) for t in ordered])
        return tokenizer


def is_rank_file(path: Path) -> bool:
    """Whether a name is that of a file of ranks."""
    return path.name.endswith(_TIKTOKEN) or _is_tekken(path)


def _is_tekken(path: Path) -> bool:
    return path.name.startswith("tekken") and path.suffix == ".json"


def parse_rank_file(
    content: bytes, path: Path, *, pattern: str | None, special_tokens: Mapping[str, int]
) -> RankFile:
    """Read a file of ranks.

    Args:
        content: of the file.
        path: what errors call it, and whose name may say which pattern it is for.
        pattern: a known name or a regular expression; None: as the file, or its name, says.
        special_tokens: ids by string, beside those that are known for the pattern or in the file.

    Raises:
        TokenizerError: the file is broken, the pattern is unknown, or ids collide.
    """
    if pattern is not None and pattern not in NAMED and re.fullmatch(r"[\w.-]*", pattern):
        near = difflib.get_close_matches(pattern, NAMED, n=1, cutoff=0.4)
        hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(NAMED)}"
        raise TokenizerError(
            f"tokenizer.pattern {pattern!r} is no known name and no regular expression that cuts "
            f"text; {hint}"
        )
    if _is_tekken(path):
        file = _parse_tekken(content, path, pattern, special_tokens)
    else:
        file = _parse_tiktoken(content, path, pattern, special_tokens)
    _regex(file.pattern)
    taken = {file.first_id + rank for rank in file.ranks.values()}
    for token, token_id in file.special_tokens.items():
        if token_id in taken or token_id < 0 or not token or bytes_of(token) in file.ranks:
            raise TokenizerError(
                f"{path}: special token {token!r} cannot have id {token_id}: the id or the string "
                "is another token's; correct tokenizer.special_tokens"
            )
        taken.add(token_id)
    missing = [byte for byte in range(256) if bytes([byte]) not in file.ranks]
    if missing:
        raise TokenizerError(f"{path} has no token for byte {missing[0]:#04x}")
    return file


def _parse_tiktoken(
    content: bytes, path: Path, pattern: str | None, special_tokens: Mapping[str, int]
) -> RankFile:
    name = pattern or guess_name(path)
    if name is None:
        raise TokenizerError(
            f"{path.name} does not say how its text is cut; set tokenizer.pattern to a regular "
            f"expression or one of {', '.join(NAMED)}"
        )
    ranks: dict[bytes, int] = {}
    for number, line in enumerate(_unpacked(content, path).splitlines(), 1):
        try:
            token, rank = line.split()
            ranks[base64.b64decode(token, validate=True)] = int(rank)
        except (ValueError, binascii.Error) as error:
            raise TokenizerError(
                f"{path}, line {number} is not a token in base64 and its rank: {line[:80]!r}"
            ) from error
        if len(ranks) != number:
            raise TokenizerError(f"{path}, line {number} has a token a second time: {line[:80]!r}")
    if len(set(ranks.values())) != len(ranks) or min(ranks.values(), default=0) < 0:
        raise TokenizerError(f"{path} gives one rank to two tokens, or a negative one")
    return RankFile(
        pattern=NAMED.get(name, name),
        ranks=ranks,
        first_id=0,
        special_tokens={**SPECIAL_TOKENS.get(name, {}), **special_tokens},
    )


def _unpacked(content: bytes, path: Path) -> bytes:
    try:
        return gzip.decompress(content) if path.suffix == ".gz" else content
    except (OSError, EOFError, zlib.error) as error:
        raise TokenizerError(f"{path} cannot be decompressed: {error}") from error


def _parse_tekken(
    content: bytes, path: Path, pattern: str | None, special_tokens: Mapping[str, int]
) -> RankFile:
    try:
        document: dict[str, Any] = json.loads(content)
        config = document["config"]
        first_id = int(config["default_num_special_tokens"])
        count = int(config["default_vocab_size"]) - first_id
        tokens = [base64.b64decode(entry["token_bytes"]) for entry in document["vocab"][:count]]
        in_order = all(entry["rank"] == at for at, entry in enumerate(document["vocab"][:count]))
        special = {
            entry["token_str"]: int(entry["rank"]) for entry in document.get("special_tokens") or []
        }
        cut = config["pattern"]
    except (ValueError, KeyError, TypeError, binascii.Error) as error:
        raise TokenizerError(f"{path} is not a tekken.json: {error!r}") from error
    if not in_order or len(set(tokens)) != len(tokens):
        raise TokenizerError(f"{path}: its vocabulary is not in the order of ranks, or repeats")
    return RankFile(
        pattern=NAMED.get(pattern, pattern) if pattern else cut,
        ranks={token: rank for rank, token in enumerate(tokens)},
        first_id=first_id,
        special_tokens={**(special or _TEKKEN_SPECIAL), **special_tokens},
    )


def _regex(pattern: str) -> Regex:
    try:
        return Regex(pattern)
    except Exception as error:  # the library raises bare Exception
        raise TokenizerError(
            f"tokenizer.pattern {pattern!r} is no regular expression ({error}); give one, or one "
            f"of {', '.join(NAMED)}"
        ) from error
