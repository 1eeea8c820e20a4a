"""Why a run ends, in one line of one rank, however many ranks it ends on."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from trainer.lost_ranks import Process, describe, is_of_a_peer, lost_ranks

if TYPE_CHECKING:
    from torch.distributed.distributed_c10d import Store

TERMINATED = 128 + signal.SIGTERM
_LET_ANOTHER_SPEAK_S = 10
"""torchrun ends all ranks when the first one ends."""
_LOOK_AROUND_S = 2
"""What another machine's ranks may take to say that one of theirs has gone."""
_SPOKEN = "steelyard/mistakes"


@dataclass(slots=True, kw_only=True)
class LastWords:
    """Of one rank; `store` and `processes` are known as soon as ranks have met."""

    rank: int
    store: Store | None = None
    processes: Sequence[Process] = ()
    what_next: Callable[[], str] = str
    """What the same command will do when it is run again."""
    speaking: threading.Lock = field(default_factory=threading.Lock)

    def of_a_mistake(self, error: Exception) -> None:
        """Write it down, or leave it to the rank that was faster.

        Before ranks talk, so without a store, all of them find the same, and rank 0 has the word;
        one that is still here afterwards was alone with it.
        """
        if self.store is None and self.rank:
            _let_another_speak()
        if not self._say(str(error)):
            _let_another_speak()

    def of_an_interrupt(self) -> None:
        """Rank 0 has the word; ranks that fail since this one has left say nothing."""
        if is_one_of_several():  # it comes from the terminal, and from torchrun again
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        self.leave_it_to_a_traceback()
        if self.rank == 0:
            sys.stderr.write("steelyard: interrupted\n")

    def of_a_failure(self, error: RuntimeError) -> bool:
        """Name the rank that was lost, or leave it to another; False where it is another reason."""
        if len(self.processes) < 2:
            return False
        deadline = time.monotonic() + _LOOK_AROUND_S
        lost: list[int] = []
        while not self._has_spoken() and not lost and time.monotonic() < deadline:
            lost = lost_ranks(self.processes)
            time.sleep(0 if lost else 0.05)
        if self._has_spoken():
            _let_another_speak()  # it failed because a rank with a mistake has left
        elif lost:
            self._say(self._of_the_lost(lost))
        elif is_of_a_peer(error):
            reason = str(error).splitlines()[0]
            self._say(f"a rank of another machine was lost: {reason}; {self.what_next()}")
        else:
            self.leave_it_to_a_traceback()
            return False
        return True

    def of_termination(self) -> None:
        """End this process, as asked by SIGTERM; name the rank that was lost, if one was.

        If none was, torchrun was told to end, or this rank; others that see it gone say nothing.
        """
        if not self._has_spoken():
            lost = lost_ranks(self.processes)
            told = f"was told to end (SIGTERM); {self.what_next()}"
            self._say(self._of_the_lost(lost) if lost else told)
        with self.speaking:  # the main thread may be about to
            sys.stderr.flush()
            os._exit(TERMINATED)

    def leave_it_to_a_traceback(self) -> None:
        """Ranks that fail since this one has left say nothing."""
        with contextlib.suppress(RuntimeError):  # torchrun's store may be gone
            if self.store is not None:
                self.store.add(_SPOKEN, 1)

    def _say(self, text: str) -> bool:
        with self.speaking:
            try:
                first = self.store is None or self.store.add(_SPOKEN, 1) == 1
            except RuntimeError:
                first = True
            if first:
                sys.stderr.write(f"steelyard: {text}\n")
            return first

    def _has_spoken(self) -> bool:
        try:
            return self.store is not None and self.store.check([_SPOKEN])
        except RuntimeError:
            return False

    def _of_the_lost(self, ranks: Sequence[int]) -> str:
        return (
            f"{describe(ranks, self.processes)} ended without a word; if the system killed it for "
            f"memory (see dmesg), share the model among more ranks; then {self.what_next()}"
        )


def is_one_of_several() -> bool:
    """Whether torchrun's environment names other ranks."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1


def _let_another_speak() -> None:
    with contextlib.suppress(KeyboardInterrupt):
        time.sleep(_LET_ANOTHER_SPEAK_S)
