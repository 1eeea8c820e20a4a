"""The epochs of a source that a segment may take: listed where something has run, else a range."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from itertools import chain


@dataclass(frozen=True, slots=True)
class Epochs:
    """Numbers of epochs, ascending.

    There may be 2^31 of them where `max_epochs` just means many, so nothing goes through all.

    Args:
        left: those of which earlier segments left something.
        fresh: those after them, which nobody began.
    """

    left: list[int]
    fresh: range

    def __len__(self) -> int:
        return len(self.left) + len(self.fresh)

    def __getitem__(self, place: int) -> int:
        return self.left[place] if place < len(self.left) else self.fresh[place - len(self.left)]

    def __contains__(self, epoch: int) -> bool:
        return epoch in self.left or epoch in self.fresh

    def __iter__(self) -> Iterator[int]:
        return chain(self.left, self.fresh)

    @property
    def last(self) -> int:
        return self[len(self) - 1]

    def first_without(self, begun: Collection[int]) -> int | None:
        """The first that is not among `begun`; None where all are."""
        return next((epoch for epoch in self if epoch not in begun), None)

    def considered(self, begun: Collection[int]) -> set[int]:
        """Those that tell of all: what is left, what a stream began, one that it did not, the last.

        Any other is a fresh, whole pass, as is the one that was not begun.
        """
        found = {*self.left, *(epoch for epoch in begun if epoch in self), self.last}
        after = self.first_without(found)
        return found if after is None else {*found, after}
