"""Which library encodes: loading the engine of an identity."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial

import numpy as np

from pipeline.tokenizer import splintr_encoder, tiktoken_encoder
from pipeline.tokenizer.identity import (
    NO_ENGINE,
    EngineUnavailable,
    TokenizerError,
    TokenizerIdentity,
)
from pipeline.tokenizer.reference import (
    REFERENCE,
    Engine,
    HuggingFaceEngine,
    dtype_of,
    reference_engine,
)
from pipeline.tokenizer.referral import (
    Encoder,
    ReferringEngine,
    Test,
    holds_any,
    may_change_by_nfc,
)
from pipeline.tokenizer.vocabulary import ByteLevelBPE, describe

_FAST: dict[str, Callable[[ByteLevelBPE], tuple[Encoder, list[Test]]]] = {
    "splintr": splintr_encoder.build,
    "tiktoken": tiktoken_encoder.build,
}
_VERSION: dict[str, Callable[[], str]] = {
    "splintr": splintr_encoder.version,
    "tiktoken": tiktoken_encoder.version,
    REFERENCE: lambda: HuggingFaceEngine.version,
}
ENGINES = tuple(_VERSION)
"""From the fastest to the reference."""


def engine_version(name: str) -> str:
    """The version of an engine's library here.

    Raises:
        EngineUnavailable: it is not installed, or not the version that was checked.
    """
    return _VERSION[name]()


def build_fast(name: str, description: ByteLevelBPE) -> tuple[Encoder, list[Test]]:
    """A library's encoder for a vocabulary, and the tests of texts that it would read differently.

    Raises:
        EngineUnavailable: the library, or what it needs of the vocabulary, is not there.
    """
    encoder, tests = _FAST[name](description)
    if description.added:
        tests.append(holds_any(description.added))
    if description.nfc:
        tests.append(may_change_by_nfc)
    return encoder, tests


@lru_cache(maxsize=8)
def load_engine(identity: TokenizerIdentity) -> Engine:
    """The engine of an identity, loaded once a process.

    Raises:
        TokenizerError: the vocabulary is not the one the identity was made from, text could forge
            the ids that mark a document's ends though it must not, or the engine is not here.
    """
    name = identity.engine
    if name == NO_ENGINE:
        return reference_engine(identity)  # refuses: there is no vocabulary
    try:
        found = engine_version(name)
        if found != identity.engine_version:
            raise EngineUnavailable(f"{found} is installed")
        if name == REFERENCE:
            return reference_engine(identity)
        encoder, tests = build_fast(name, describe(identity))
    except EngineUnavailable as error:
        raise TokenizerError(
            f"the job encodes with {name} {identity.engine_version}, but here {error}; install the "
            "same version on every worker"
        ) from error
    return ReferringEngine(encoder, tests, partial(reference_engine, identity), dtype_of(identity))


def decode(identity: TokenizerIdentity, ids: np.ndarray) -> str:
    """The text of a document's ids, or of a part of them, with special tokens as their strings."""
    return reference_engine(identity).decode(ids)
