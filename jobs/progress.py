"""Progress on stderr: a bar where there is a terminal, plain lines where there is none."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from threading import Event, Thread
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

_LINE_EVERY_S = 10.0


class Stage(Protocol):
    """One stage's progress."""

    def advance(self, amount: int, *, documents: int = 0, tokens: int = 0) -> None:
        """Say that `amount` more of the stage's total is done."""
        ...


class _Counts:
    """What a stage has done so far, in words."""

    def __init__(self, total: int | None, unit: str, before: str) -> None:
        self.total, self.unit, self.before = total, unit, before
        self.done = self.documents = self.tokens = 0
        self.started = self.first_at = time.monotonic()
        self.first_done = 0

    def add(self, amount: int, documents: int, tokens: int) -> None:
        self.done += amount
        if not self.first_done:
            self.first_done, self.first_at = amount, time.monotonic()
        self.documents += documents
        self.tokens += tokens

    def text(self) -> str:
        seconds = max(time.monotonic() - self.started, 1e-9)
        done = f"{self.documents:,} documents, {self.tokens / 1e6:,.1f} M tokens"
        if self.total is None:
            return f"{self.done:,} {self.unit}, {done}"
        if self.unit != "bytes":
            return f"{self.done:,}/{self.total:,} {self.unit}"
        return f"{done}, {self.done / 1e6 / seconds:,.1f} MB/s"

    def share(self) -> float | None:
        """What part of the total is done; None where the total is unknown."""
        return None if self.total is None else self.done / max(self.total, 1)

    def time_left(self) -> str:
        """At the pace since the first advance: what came before it was loading and compiling."""
        if not self.done and self.before:
            return self.before
        if self.total is None or self.done <= self.first_done:
            return "time left unknown"
        pace = (time.monotonic() - self.first_at) / (self.done - self.first_done)
        return f"{pace * (self.total - self.done):,.0f} s left"


class Reporter:
    """Opens stages on one console; `quiet` keeps everything but errors from it."""

    def __init__(self, *, quiet: bool = False) -> None:
        self._console = Console(stderr=True, quiet=quiet, highlight=False)

    def line(self, text: str) -> None:
        """One line of its own."""
        self._console.print(text, soft_wrap=True, markup=False)

    @contextlib.contextmanager
    def stage(
        self, name: str, *, total: int | None, unit: str, before: str = ""
    ) -> Iterator[Stage]:
        """Report a stage; its last line has counts and seconds.

        Args:
            name: what is done, such as "tokenize code".
            total: how much there is in all; None where that shows only at the end, and then
                documents and tokens are counted.
            unit: of `total`; "bytes" adds documents, tokens and MB/s.
            before: what happens until the first advance.
        """
        counts = _Counts(total, unit, before)
        bar = self._bar(name, counts) if self._console.is_terminal else self._lines(name, counts)
        with bar as stage:
            yield stage
        seconds = time.monotonic() - counts.started
        self.line(f"{name}: {counts.text()}, {seconds:.1f} s")

    @contextlib.contextmanager
    def _bar(self, name: str, counts: _Counts) -> Iterator[Stage]:
        columns = (
            TextColumn(name),
            BarColumn(),
            TaskProgressColumn(),
            TextColumn("{task.fields[text]}"),
            TimeRemainingColumn(),
        )
        with Progress(*columns, console=self._console, transient=True) as progress:
            total = None if counts.total is None else max(counts.total, 1)
            task = progress.add_task(name, total=total, text=counts.before)

            class Bar:
                def advance(self, amount: int, *, documents: int = 0, tokens: int = 0) -> None:
                    counts.add(amount, documents, tokens)
                    progress.update(task, completed=counts.done, text=counts.text())

            yield Bar()

    @contextlib.contextmanager
    def _lines(self, name: str, counts: _Counts) -> Iterator[Stage]:
        """A line every ten seconds, also while nothing advances."""
        done = Event()

        def speak() -> None:
            while not done.wait(_LINE_EVERY_S):
                share = counts.share()
                percent = "" if share is None else f"{100 * share:.0f}%, "
                self.line(f"{name}: {percent}{counts.text()}, {counts.time_left()}")

        class Lines:
            def advance(self, amount: int, *, documents: int = 0, tokens: int = 0) -> None:
                counts.add(amount, documents, tokens)

        speaker = Thread(target=speak, name="progress", daemon=True)
        speaker.start()
        try:
            yield Lines()
        finally:
            done.set()
            speaker.join()
