"""What a verification says: the first offence, or what was checked."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from pipeline.shard.tables import FormatError

Progress: TypeAlias = Callable[[str, int, int], None]
"""Called with the stage's name, how much of it is done, and how much there is."""


class InOrder(Protocol):
    """Maps a function over units, as `map` does, and may run some of them ahead elsewhere.

    Functions and units are picklable and small. Results come in the order of the units, and an
    error in the place of its result: so the first offence is the same wherever units run.
    """

    def __call__(
        self, function: Callable[[Any], Any], units: Iterable[Any], /
    ) -> Iterator[Any]: ...


LAWS = (
    "every file, table and row group is the one its digest names",
    "every token store is whole, and the one that the plan was made from",
    "ids are in the vocabulary, and documents have the ends that source.json speaks of",
    "rows stand in order: N micro-batches a step, none empty, workload not increasing",
    "tokens, pieces, piece lengths and displacements keep their bounds",
    "workloads, targets and step totals are what their pieces give",
    "shards say what the plan says, with the token stores' tokens and true next tokens",
    "every stream token is in exactly one piece of one row, or in the tail",
    "no source is further from its share of the stream than whole pieces explain",
    "pieces of an epoch are disjoint, and whole documents for every epoch but a source's last",
    "what of a source is truncated, left out or not selected is what its policies say, and counted",
    "a segment takes what earlier ones have not run: begun documents go on, none runs twice",
    "a stream ends at its target or a source's end, after no more of its epochs than it may have",
    "the tail is less than a step, or what was on its way where a fork cut the segment",
    "CP plans give every token to exactly one rank, in even shares, and predict its work",
)
"""What `verify` establishes, in the order in which it is checked."""


class VerifyError(FormatError):
    """A law is broken; the message names the file and, in a part, the row group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyReport:
    """What was checked: all of it was found right.

    Args:
        files: files of the set and of its token stores, the manifest included.
        bytes: their bytes.
        row_groups: row groups of the plan, the shards and the CP plans, footers not counted.
        rows: micro-batches.
        pieces: pieces of all micro-batches and the tail.
        tokens: tokens of all micro-batches, each compared with its token store.
        laws: what holds, a sentence a law.
    """

    files: int
    bytes: int
    row_groups: int
    rows: int
    pieces: int
    tokens: int
    laws: tuple[str, ...] = LAWS
