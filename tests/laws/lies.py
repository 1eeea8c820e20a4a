"""Sets that lie consistently: what is changed is changed everywhere, and every digest is right.

The change is made where the set of `tests.fixture_set` is still lists of pieces, before its tables
are computed. So boundaries, counts, workloads, the order of slots, CP plans, step table, shards and
signatures follow from the lie, and only a check of the law itself can find it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline.verify import VerifyError
from tests import fixture_set
from tests.changes import offence
from tests.fixture_contents import N, Piece, piece_tokens
from tests.fixture_set import SetData, make_set
from tests.fixture_stream import workload_of

Rows = list[list[Piece]]
Change = Callable[[Rows], None]


def set_of_rows(change: Change) -> SetData:
    """The set with micro-batches that were changed; the manifest tells of the true stream."""
    plain = fixture_set.pack

    def pack(pieces: list[Piece], *, swap: bool) -> tuple[Rows, list[Piece]]:
        rows, tail = plain(pieces, swap=swap)
        rows = [[dict(piece) for piece in row] for row in rows]
        change(rows)
        for row in rows:
            row.sort(key=lambda piece: piece["position"])
        steps = [rows[first : first + N] for first in range(0, len(rows), N)]
        for step in steps:
            step.sort(key=lambda row: (-workload_of(row), row[0]["position"] if row else 0))
        return [row for step in steps for row in step], tail

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fixture_set, "pack", pack)
        return make_set()


def set_of_stream(change: Callable[[list[Piece]], None]) -> SetData:
    """The set of a stream that was changed, whose pieces lie end to end all the same."""
    plain = fixture_set.make_stream

    def make_stream(rule: fixture_set.Rule) -> list[Piece]:
        stream = plain(rule)
        change(stream)
        position = 0
        for piece in stream:
            piece["position"] = position
            position += piece_tokens(piece)
        return stream

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fixture_set, "make_stream", make_stream)
        return make_set()


def check_is_found(data: SetData, message: str, directory: Path) -> VerifyError:
    """Verify does not believe the set, for this reason."""
    error = offence(data.write(directory))
    assert message in str(error)
    return error
