"""One job at a time on a place in an object store, and dead ones make way."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyarrow import fs

from pipeline.files.atomic import write_atomically
from pipeline.files.url_path import as_path
from pipeline.state import remote_lock
from pipeline.state.ledger import Ledger
from pipeline.state.lock import Busy, exclusive
from tests.laws.noticed import noticed
from tests.object_store import s3_server

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
BEAT_S, DEAD_S = 0.05, 1.5


@pytest.fixture(scope="module")
def options() -> Iterator[str]:
    with s3_server() as endpoint:
        options = f"?endpoint_override={endpoint}&scheme=http"
        system, _ = fs.FileSystem.from_uri(f"s3://locks/{options}&allow_bucket_creation=true")
        system.create_dir("locks")
        yield options


@pytest.fixture
def place(options: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A place of its own, where jobs beat fast and are soon dead."""
    monkeypatch.setattr(remote_lock, "BEAT_S", BEAT_S)
    monkeypatch.setattr(remote_lock, "DEAD_S", DEAD_S)
    return as_path(f"s3://locks/{request.node.name}{options}")


def left_by(place: Path, **changes: Any) -> Path:
    """An object that a job left."""
    content = {**remote_lock._this_process(), "state": "held", "count": 3, **changes}
    path = place / "lock" / "0123.json"
    write_atomically(path, json.dumps(content).encode())
    return path


def test_a_place_is_held_once_and_let_go(place: Path) -> None:
    with exclusive(place) as hold:
        hold.check()
        with pytest.raises(Busy, match=f"process {os.getpid()} on "), exclusive(place):
            pass
        hold.check()
    with exclusive(place) as hold:
        hold.check()
    assert not list(place.glob("lock/*"))


def test_of_many_at_once_no_two_hold_it(place: Path) -> None:
    holding: list[int] = []
    most: list[int] = []

    def attempt(number: int) -> None:
        try:
            with exclusive(place) as hold:
                holding.append(number)
                most.append(len(holding))
                time.sleep(4 * BEAT_S)
                hold.check()
                holding.remove(number)
        except Busy:
            pass

    threads = [threading.Thread(target=attempt, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not holding
    assert max(most, default=1) == 1


def _hold_and_wait(url: str, ready: Any) -> None:
    remote_lock.BEAT_S = BEAT_S
    with exclusive(as_path(url)):
        ready.set()
        time.sleep(60)


def test_a_job_killed_on_this_machine_makes_way_at_once(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = multiprocessing.get_context("spawn")
    ready = context.Event()
    job = context.Process(target=_hold_and_wait, args=(str(place), ready))
    job.start()
    assert ready.wait(60)
    assert job.pid is not None
    with pytest.raises(Busy, match=f"process {job.pid} on "), exclusive(place):
        pass
    os.kill(job.pid, signal.SIGKILL)
    job.join()
    monkeypatch.setattr(remote_lock, "DEAD_S", 1e6)
    with exclusive(place) as hold:
        hold.check()


def test_a_job_of_another_machine_makes_way_when_it_is_still_for_long(place: Path) -> None:
    path = left_by(place, host="elsewhere", pid=1)
    with exclusive(place) as hold:
        hold.check()
        assert not path.exists()


def test_a_job_of_another_machine_that_moves_is_busy(place: Path) -> None:
    left_by(place, host="elsewhere", pid=1)
    timer = threading.Timer(DEAD_S / 3, left_by, [place], {"host": "elsewhere", "count": 4})
    timer.start()
    with pytest.raises(Busy, match="on elsewhere"), exclusive(place):
        pass
    timer.join()


def test_a_holder_that_slept_records_nothing_more(place: Path) -> None:
    with exclusive(place) as hold, Ledger(place / "ledger.jsonl", hold) as ledger:
        ledger.record("key", "0", {"n": 0})
        for path in place.glob("lock/*"):
            path.unlink()  # another job took it for dead
        left_by(place, host="elsewhere")
        time.sleep(DEAD_S / 2 + BEAT_S)
        with pytest.raises(Busy, match="another took over"):
            ledger.record("key", "1", {"n": 1})
    with Ledger(place / "ledger.jsonl") as ledger:
        assert ledger.receipt("key", "0") == {"n": 0}
        assert ledger.receipt("key", "1") is None


def test_a_ledger_in_a_store_keeps_what_it_was_told(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.state.ledger._JOINED_FROM", 3)
    for number in range(5):
        with Ledger(place / "ledger.jsonl") as ledger:
            assert [ledger.receipt("key", str(n)) for n in range(number)] == [
                {"n": n} for n in range(number)
            ]
            ledger.record("key", str(number), {"n": number})
    assert len(list((place / "ledger.jsonl").glob("*"))) <= 3
    with Ledger(place / "ledger.jsonl") as ledger:
        ledger.forget(["1"])
        assert ledger.receipt("key", "1") is None
    name = max(place.glob("ledger.jsonl/*"))
    write_atomically(name, name.read_bytes()[:-5])  # a put cut short: unit 1 is there again
    with Ledger(place / "ledger.jsonl") as ledger:
        assert ledger.receipt("key", "1") == {"n": 1}
        ledger.remove()
    assert not list(place.glob("ledger.jsonl/*"))


class Interrupted(remote_lock.Held):
    """Something happens while it sleeps: at the end of its watch, or before it puts its object."""

    after_watch: Callable[[], object] = staticmethod(lambda: None)
    before_put: Callable[[], object] = staticmethod(lambda: None)

    def _watch(self, watched: dict[str, Any]) -> None:
        super()._watch(watched)
        self.after_watch()

    def _put(self) -> None:
        self.before_put()
        super()._put()


def test_a_job_that_slept_while_it_watched_looks_again(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = left_by(place, host="elsewhere", pid=1)
    monkeypatch.setattr(remote_lock, "DEAD_S", 0.0)  # all of the time to watch was slept through
    held = Interrupted(place)
    held.after_watch = lambda: left_by(place, host="elsewhere", pid=1, count=4)
    try:
        with pytest.raises(Busy, match="on elsewhere"):
            held.take()
    finally:
        held.release()
    assert path.exists()


def test_a_holder_that_puts_back_what_another_removed_sees_the_other(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_lock, "BEAT_S", 1e6)
    held = Interrupted(place)
    held.take()

    def taken_over() -> None:
        for path in place.glob("lock/*"):
            path.unlink()
        left_by(place, host="elsewhere", pid=1)

    held.before_put = taken_over
    held._beat()
    with pytest.raises(Busy, match="another took over"):
        held.check()
    held.release()


def test_a_machine_that_sleeps_counts_its_sleep(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_lock, "BEAT_S", 1e6)
    clocks = {time.CLOCK_MONOTONIC: 5.0, time.CLOCK_BOOTTIME: 5.0}
    monkeypatch.setattr(remote_lock.time, "clock_gettime", clocks.__getitem__)
    with exclusive(place) as hold:
        for path in place.glob("lock/*"):
            path.unlink()
        hold.check()
        clocks[time.CLOCK_BOOTTIME] += 600
        with pytest.raises(Busy, match="another took over"):
            hold.check()


def test_a_lock_that_does_not_look_at_others_is_noticed(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_lock.Held, "_others", lambda held: [])
    with noticed():
        test_a_place_is_held_once_and_let_go(place)


def test_a_ledger_that_does_not_ask_who_holds_it_is_noticed(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_lock.Held, "check", lambda held: None)
    with noticed():
        test_a_holder_that_slept_records_nothing_more(place)
