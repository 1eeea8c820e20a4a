"""Receipts of what was read of inputs, with how these were stamped before and after.

The driver digests a source's files once, before they are read. A file that is changed and changed
back between two runs has the right digest each time, but a part made meanwhile holds other
content; its stamps tell. They are size and time of change, or what a store says of an object. The
inode is no part of them: one mount of a network file system numbers files otherwise than the next.
"""

from __future__ import annotations

from collections.abc import Callable

from pipeline.reading.inputs import stamps_now, word_of
from pipeline.reading.listing import SourceError
from pipeline.reading.splits import Split
from pipeline.state.ledger import Receipt

_STAMPS = "stamps"


def read_stamped(split: Split, read: Callable[[], Receipt]) -> Receipt:
    """The receipt of reading a split, with the stamps of its files before and after."""
    before = word_of(stamps_now(split.paths))
    receipt = read()
    return {**receipt, _STAMPS: [before, word_of(stamps_now(split.paths))]}


def is_as_expected(receipt: Receipt, expected: str) -> bool:
    """Whether a split's files were, before and after, what the driver digested."""
    return receipt.get(_STAMPS) == [expected, expected]


def check_stamps(receipt: Receipt, expected: str, source: str, split: Split) -> None:
    """Refuse what was read of other files than the driver digested.

    Raises:
        SourceError: they changed.
    """
    if not is_as_expected(receipt, expected):
        more = f" or one of {len(split.names) - 1} others" if len(split.names) > 1 else ""
        raise SourceError(
            f"source {source!r}: a file changed while it was read: {split.paths[0]}{more}; run "
            "again when its files are at rest"
        )


def without_stamps(receipt: Receipt) -> Receipt:
    """The receipt as whoever read the split made it."""
    return {name: value for name, value in receipt.items() if name != _STAMPS}
