"""One job at a time on a place in an object store, by objects that its jobs write and list.

Every job puts an object of its own below `DIR/lock/` and then lists what is there. Object stores
are consistent: what was put is in every later listing. So of two jobs at least the one that put
second sees the other, and gives way; two that begin at once may both. No store needs conditional
writes for it.

A job that holds the lock writes its object again every few seconds, with a count. Another that
finds an object watches whether it changes, by its own clock; one that does not is of a dead job and
is removed. A holder that was only asleep finds its object gone, and stops before it records
anything (`check`). On the holder's own machine a dead process is known at once.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pipeline.files.atomic import write_atomically
from pipeline.files.storage import list_files

log = logging.getLogger(__name__)
BEAT_S = 10.0
"""How often a holder writes its object again."""
DEAD_S = 60.0
"""A job that did not for so long is dead."""
_TRIES = 5
_OBJECT_BYTES = 1024
"""Of one length, so that a reader of the length before does not read half of it."""


class Busy(RuntimeError):
    """Another process works on the directory."""


@contextlib.contextmanager
def held_in_store(directory: Path) -> Iterator[Held]:
    """Hold a place in an object store while the block runs.

    Raises:
        Busy: another job holds it.
        StorageError: the store cannot be reached.
    """
    held = Held(directory)
    try:
        held.take()
        yield held
    finally:
        held.release()


class Held:
    """A lock of this process; see the module."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._lock = directory / "lock"
        self._own = f"{secrets.token_hex(8)}.json"
        self._count = 0
        self._state = "waiting"
        self._lost = False
        self._ended = threading.Event()
        self._beating = threading.Lock()
        self._thread = threading.Thread(target=self._beat_on, name="lock", daemon=True)
        self._last = 0.0

    def take(self) -> None:
        """Put the object, wait for dead ones to be known as dead.

        Raises:
            Busy: one of them is alive.
        """
        self._last = _now()
        self._put()
        self._thread.start()
        watched = {}
        for name in self._others():
            content = self._read(name)
            if content is not None and _is_dead_here(content):
                self._remove(name, content)
            elif content is not None:
                watched[name] = content
        if watched:
            self._watch(watched)
            self._replace(watched)
        self._state = "held"
        self._beat()
        self.check()

    def _watch(self, watched: dict[str, Any]) -> None:
        """See others change for as long as a live one may not."""
        log.warning(
            "%s was in use by %s; waiting up to %.0f s to see whether it still is",
            self._directory,
            _named(next(iter(watched.values()))),
            DEAD_S,
        )
        until = time.monotonic() + DEAD_S
        while watched and time.monotonic() < until:
            time.sleep(BEAT_S / 10)
            self._look_again(watched)

    def _look_again(self, watched: dict[str, Any]) -> None:
        """Drop from `watched` what is gone.

        Raises:
            Busy: one has changed.
        """
        there = self._others()
        for name in list(watched):
            now = self._read(name) if name in there else None
            if now is None:
                del watched[name]
            elif now != watched[name]:
                raise Busy(
                    f"another job ({_named(now)}) holds {self._directory}; wait for it to end, or "
                    "choose another directory"
                )

    def _replace(self, dead: dict[str, Any]) -> None:
        """Remove what did not change.

        This job says first that it holds the place, and then looks a last time. A holder that was
        only asleep, or that changed while this one was, has written by then and is seen, or will
        see this one when it does.
        """
        with self._beating:
            self._state = "held"
            self._put()
            self._look_again(dead)
            for name, content in dead.items():
                self._remove(name, content)

    def check(self) -> None:
        """Nothing while the lock is held; a holder that slept looks first.

        Raises:
            Busy: another job took it over.
        """
        if _now() - self._last > DEAD_S / 2:
            self._beat()
        if self._lost:
            raise Busy(
                f"this job stood still for more than {DEAD_S:.0f} s, and another took over "
                f"{self._directory}; what this one finished is kept"
            )

    def release(self) -> None:
        """Let others in."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()
        with contextlib.suppress(OSError):  # a dead store keeps it; others will see that it is old
            (self._lock / self._own).unlink(missing_ok=True)

    def _beat_on(self) -> None:
        while not self._ended.wait(BEAT_S) and not self._lost:
            with contextlib.suppress(OSError):  # the next may get through, else `check` fails
                self._beat()

    def _beat(self) -> None:
        with self._beating:
            begun = _now()
            if self._is_taken() or not (self._lock / self._own).exists():
                self._lost = True
                return
            self._put()
            # Asleep since it looked, it may have put back what another had removed. All look after
            # they have put, so of two at least one sees the other.
            if self._is_taken():
                self._lost = True
            self._last = begun

    def _is_taken(self) -> bool:
        """Whether another holds what this one holds: it took it while this one slept."""
        if self._state != "held":
            return False
        contents = [self._read(name) for name in self._others()]
        return any(content is not None and content["state"] == "held" for content in contents)

    def _put(self) -> None:
        self._count += 1
        content = json.dumps({**_this_process(), "state": self._state, "count": self._count})
        write_atomically(self._lock / self._own, content.ljust(_OBJECT_BYTES).encode())

    def _others(self) -> list[str]:
        return sorted(set(list_files(str(self._lock))) - {self._own})

    def _read(self, name: str) -> dict[str, Any] | None:
        """What another job wrote last; None where its object is gone."""
        for tries_left in reversed(range(_TRIES)):
            try:
                return json.loads((self._lock / name).read_bytes())
            except (OSError, ValueError):  # written or removed meanwhile, or not to be had at all
                if name not in self._others():
                    return None
                if not tries_left:
                    raise
        raise AssertionError

    def _remove(self, name: str, content: dict[str, Any]) -> None:
        log.warning("%s: the job before (%s) is dead", self._directory, _named(content))
        (self._lock / name).unlink(missing_ok=True)


def _now() -> float:
    """Seconds of a clock that goes on while the machine sleeps, where the system has one."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


def _this_process() -> dict[str, Any]:
    """What tells this process from all others."""
    return {"host": socket.gethostname(), "pid": os.getpid(), **_marks(os.getpid())}


def _marks(pid: int) -> dict[str, str]:
    """When a process of this machine began, and of which boot and namespace; {} where none is."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
        return {
            "began": status.rpartition(")")[2].split()[19],
            "boot": Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
            "namespace": os.readlink("/proc/self/ns/pid"),
        }
    except OSError:
        return {}


def _is_dead_here(content: dict[str, Any]) -> bool:
    """Whether a process was one of this machine, and is no more; of others nothing is known."""
    own = _this_process()
    same = ("host", "boot", "namespace")
    if "boot" not in own or any(content.get(name) != own[name] for name in same):
        return False
    return _marks(int(content["pid"])).get("began") != content.get("began")


def _named(content: dict[str, Any]) -> str:
    return f"process {content.get('pid')} on {content.get('host')}"
