"""Which engine a job uses: the fastest that is here and proven to give the reference's ids."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pipeline.tokenizer.engine import ENGINES, engine_version, load_engine
from pipeline.tokenizer.identity import EngineUnavailable, TokenizerError, TokenizerIdentity
from pipeline.tokenizer.proof import prove_equal, prove_on_made_texts
from pipeline.tokenizer.reference import REFERENCE, reference_engine

_MUCH_REFERRED = 0.1
"""The share of text from which on the reference's time is most of an engine's time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """An identity with the engine to use, and why no faster one: a reason an engine."""

    identity: TokenizerIdentity
    passed_over: tuple[tuple[str, str], ...]

    def __str__(self) -> str:
        engine = f"engine {self.identity.engine} {self.identity.engine_version}"
        reasons = "; ".join(f"{name}: {reason}" for name, reason in self.passed_over)
        return f"{engine} ({reasons})" if reasons else engine


def choose_engine(identity: TokenizerIdentity, engine: str, sample: Sequence[str]) -> Choice:
    """Try engines from the fastest on, and take the first whose ids are the reference's.

    One that leaves much of the sample to the reference gives way to one that leaves less.

    Args:
        identity: the vocabulary.
        engine: the configured one, or "auto".
        sample: texts of the corpus that the ids must be equal on, beside those made to differ.

    Raises:
        TokenizerError: the engine that was asked for by name cannot be used.
    """
    passed_over: list[tuple[str, str]] = []
    proven: list[tuple[float, TokenizerIdentity]] = []
    for name in ENGINES if engine == "auto" else (engine,):
        try:
            chosen = replace(identity, engine=name, engine_version=engine_version(name))
            proven.append((_prove(chosen, sample), chosen))
        except EngineUnavailable as error:
            if engine != "auto":
                raise TokenizerError(
                    f'tokenizer.engine is "{name}", but {name}: {error}; set it to "auto" or '
                    f'"{REFERENCE}"'
                ) from error
            passed_over.append((name, str(error)))
        if proven and proven[-1][0] <= _MUCH_REFERRED:
            break
    place = min(range(len(proven)), key=lambda place: proven[place][0])
    passed_over += [
        (faster.engine, f"would leave {share:.0%} of the sample to the reference")
        for share, faster in proven[:place]
    ]
    return Choice(identity=proven[place][1], passed_over=tuple(passed_over))


def _prove(identity: TokenizerIdentity, sample: Sequence[str]) -> float:
    """The share of the sample's characters that an engine leaves to the reference."""
    if identity.engine == REFERENCE:
        return 1.0
    difference = prove_on_made_texts(identity)
    engine = load_engine(identity)
    referred = engine.referred_characters
    if difference is None:
        difference = prove_equal(engine, reference_engine(identity), sample)
    if difference is not None:
        raise EngineUnavailable(f"its ids are not the reference's: {difference}")
    return (engine.referred_characters - referred) / max(1, sum(map(len, sample)))
