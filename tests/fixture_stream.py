"""The order of the set of `tests.fixture_set`: documents cut, mixed and packed."""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass

from tests.fixture_contents import (
    CONSTANT,
    CROSSOVER,
    LENGTHS,
    S_MAX,
    SCALE,
    A,
    N,
    Piece,
    S,
    piece_tokens,
)


@dataclass(frozen=True)
class Rule:
    """Which documents a pass takes, and what of long ones."""

    longer_than_context: str
    min_tokens: int

    @property
    def epochs(self) -> tuple[int, int]:
        """Of books and web."""
        return (2, 1) if self.longer_than_context == "cut" else (4, 1)

    @property
    def weights(self) -> tuple[float, float]:
        """Of books and web, such that the stream keeps to them."""
        return (3.0, 1.0) if self.longer_than_context == "drop" else (0.8, 0.2)

    def taken(self, length: int) -> int:
        if length < self.min_tokens:
            return 0
        if length <= S or self.longer_than_context == "cut":
            return length
        return S if self.longer_than_context == "truncate" else 0


def workload_of(pieces: list[Piece]) -> int:
    return CONSTANT + sum(piece_workload(piece_tokens(piece)) for piece in pieces)


def piece_workload(d: int) -> int:
    return ((d * CROSSOVER + d * d) * SCALE + CROSSOVER // 2) // CROSSOVER


def cut(source: int, epoch: int, documents: range, rule: Rule) -> list[Piece]:
    lengths = [rule.taken(length) for length in list(LENGTHS.values())[source]]
    return [
        {
            "source": source,
            "epoch": epoch,
            "doc_id": doc_id,
            "doc_start": start,
            "doc_stop": min(start + S, lengths[doc_id]),
            "taken": lengths[doc_id],
        }
        for doc_id in documents
        for start in range(0, lengths[doc_id], S)
    ]


def make_stream(rule: Rule) -> list[Piece]:
    """Pieces shuffled inside each epoch, web's dealt in between those of books."""
    shuffle = random.Random(5)
    books = []
    for epoch in range(rule.epochs[0]):
        pieces = cut(0, epoch, range(5), rule)
        shuffle.shuffle(pieces)
        books += pieces
    reached = [doc_id for doc_id in range(10) if rule.longer_than_context != "cut" or doc_id != 8]
    web = [piece for piece in cut(1, 0, range(10), rule) if piece["doc_id"] in reached]
    shuffle.shuffle(web)
    stream = []
    for index, piece in enumerate(books):
        stream += [piece, *web[index // 2 : index // 2 + index % 2]]
    position = 0
    for piece in stream:
        piece["position"] = position
        position += piece_tokens(piece)
    return stream


def pack(pieces: list[Piece], *, swap: bool) -> tuple[list[list[Piece]], list[Piece]]:
    """Next fit, then two pieces of steps 0 and 1 may change places, so that one is displaced."""
    rows: list[list[Piece]] = []
    rest = list(pieces)
    while sum(map(piece_tokens, rest)) >= A and len(rest) >= N:
        for _ in range(N):
            row = [rest.pop(0)]
            while rest and sum(map(piece_tokens, row)) + piece_tokens(rest[0]) <= S_MAX:
                row.append(rest.pop(0))
            rows.append(row)
    if swap:
        _swap(rows[:N], rows[N : 2 * N])
    ordered = []
    for first in range(0, len(rows), N):
        step = rows[first : first + N]
        ordered += sorted(step, key=lambda row: (-workload_of(row), row[0]["position"]))
    return ordered, rest


def _swap(left: list[list[Piece]], right: list[list[Piece]]) -> None:
    """Exchange the first two pieces of different lengths whose rows have room for it."""
    for a, b in itertools.product(left, right):
        for i, j in itertools.product(range(len(a)), range(len(b))):
            more = piece_tokens(b[j]) - piece_tokens(a[i])
            if (
                more
                and max(sum(map(piece_tokens, a)) + more, sum(map(piece_tokens, b)) - more) <= S_MAX
            ):
                a[i], b[j] = b[j], a[i]
                for row in (a, b):
                    row.sort(key=lambda piece: piece["position"])
                return
    raise AssertionError("no two pieces can change places; choose another seed")
