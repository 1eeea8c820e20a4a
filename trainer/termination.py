"""What to do when torchrun ends this process, which it does as soon as another one has died."""

from __future__ import annotations

import signal
import socket
import threading
from collections.abc import Callable


def on_termination(act: Callable[[], object]) -> None:
    """Call `act` in a thread of its own when SIGTERM comes; once, from the main thread.

    The main thread may wait for another rank inside torch for minutes, where no handler of Python's
    runs; so the signal is passed on by the interpreter's wake-up descriptor.
    """
    reading, writing = socket.socketpair()
    writing.setblocking(False)
    signal.signal(signal.SIGTERM, lambda *_: None)
    signal.set_wakeup_fd(writing.fileno())

    def watch() -> None:
        while signal.SIGTERM not in reading.recv(64):
            pass  # other signals are none of its business
        act()
        writing.close()  # until here it has to be open

    threading.Thread(target=watch, name="termination", daemon=True).start()
