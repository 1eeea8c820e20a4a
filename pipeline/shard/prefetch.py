"""An iterator that is read ahead of its consumer, by one thread of its own.

Decompressing, hashing and copying release Python's lock, so the thread works while the consumer
computes. One thread is enough: a core decodes far more tokens than a GPU trains on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator
from threading import Condition, Thread
from typing import Generic, TypeVar

Item = TypeVar("Item")


def ahead(source: Iterator[Item], count: int) -> Generator[Item, None, None]:
    """The items of `source`, up to `count` of them made before they are asked for.

    Order and errors are those of `source`: an error is raised in place of the item that failed,
    after all items before it. The thread starts with the first item and is gone when the iterator
    ends, fails, is closed or dropped; for that it finishes the item it is at.

    Args:
        source: advanced by the thread alone; nothing else may use what it uses.
        count: items made ahead, 1 or more; one more is in the making.

    Raises:
        ValueError: `count` is not positive.
    """
    if count < 1:
        raise ValueError(f"cannot read {count} items ahead, only 1 or more")
    return _consume(source, count)


def _consume(source: Iterator[Item], count: int) -> Generator[Item, None, None]:
    queue: _Queue[Item] = _Queue(count)
    thread = Thread(target=_produce, args=(source, queue), name="prefetch", daemon=True)
    thread.start()
    try:
        while True:
            try:
                item = queue.get()
            except _Ended:
                return
            yield item
    finally:
        queue.close()
        thread.join()


def _produce(source: Iterator[Item], queue: _Queue[Item]) -> None:
    try:
        for item in source:
            if not queue.put(item):
                return
        queue.end(_Ended())
    except BaseException as error:  # whatever it is, it is the consumer's to see
        queue.end(error)


class _Ended(Exception):
    """The source has no more items."""


class _Queue(Generic[Item]):
    """Items from one thread to another, and last of all an error; either side may stop."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._items: deque[Item] = deque()
        self._error: BaseException | None = None
        self._closed = False
        self._changed = Condition()

    def put(self, item: Item) -> bool:
        """Hand on an item when there is room; False where the consumer has left."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or len(self._items) < self._limit)
            if not self._closed:
                self._items.append(item)
                self._changed.notify_all()
            return not self._closed

    def end(self, error: BaseException) -> None:
        """Have `get` raise this after the last item."""
        with self._changed:
            self._error = error
            self._changed.notify_all()

    def get(self) -> Item:
        """The next item; waits for it."""
        with self._changed:
            self._changed.wait_for(lambda: self._items or self._error is not None)
            if not self._items and self._error is not None:
                error, self._error = self._error, None  # else its frames and this hold each other
                raise error
            self._changed.notify_all()
            return self._items.popleft()

    def close(self) -> None:
        """Let the producer go; what is left is dropped."""
        with self._changed:
            self._closed = True
            self._items.clear()
            self._changed.notify_all()
