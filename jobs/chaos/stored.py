"""Kills of drivers that build into an object store: a server of the S3 protocol in this process."""

from __future__ import annotations

import hashlib
import logging
import os
import random
import re
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pyarrow import fs

from jobs.chaos import runs
from jobs.chaos.result import Case
from jobs.chaos.undisturbed import Undisturbed
from pipeline.files.url_path import UrlPath
from pipeline.publish import WORK

_BUCKET = "steelyard"
_ACCOUNT = {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x", "AWS_REGION": "us-east-1"}
_UNITS = re.compile(r"/(parts/\d+\.tokens|shards/\d+\.parquet|cp=\d+/\d+\.parquet)$")
_MOST_REDONE = 2
"""Units that two workers run at a time."""
_DEALT = 3
"""Kills of one build."""


class _Puts(logging.Handler):
    """Counts the objects that were put whole, by name, from the server's log."""

    _PUT = re.compile(rf'"?(PUT|POST) /{_BUCKET}/([^? ]+)(\?\S*uploadId=\S*)? HTTP')

    def __init__(self) -> None:
        super().__init__()
        self.names: Counter[str] = Counter()

    def emit(self, record: logging.LogRecord) -> None:
        found = self._PUT.search(record.getMessage())
        # Large objects are put in parts and then completed with a POST.
        if found and (found[1] == "POST") == bool(found[3]):
            self.names[found[2]] += 1


@contextmanager
def _server(puts: _Puts) -> Iterator[str]:
    """What follows a URL to reach the server, while the block runs."""
    from moto.server import ThreadedMotoServer

    log = logging.getLogger("werkzeug")
    log.setLevel(logging.INFO)
    log.propagate = False
    log.addHandler(puts)
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    os.environ.update(_ACCOUNT)
    host, port = server.get_host_and_port()
    options = f"?endpoint_override={host}:{port}&scheme=http"
    system, _ = fs.FileSystem.from_uri(f"s3://{_BUCKET}/{options}&allow_bucket_creation=true")
    system.create_dir(_BUCKET)
    yield options
    server.stop()
    log.removeHandler(puts)


def kill_stored(whole: Undisturbed, kills: int, seed: int) -> Iterator[Case]:
    """Kill drivers at random instants, each build up to three times, and run each to its end.

    What is held against the undisturbed build on a disk are the objects' bytes; a unit whose object
    was put twice was done twice.
    """
    draw, puts = random.Random(seed), _Puts()
    with _server(puts) as options:
        for number in range(-(-kills // _DEALT)):
            out = UrlPath(f"s3://{_BUCKET}/set-{number}{options}")
            puts.names.clear()
            ends = [_kill(whole, out, draw) for _ in range(min(_DEALT, kills - number * _DEALT))]
            kept = sum(bool(_UNITS.search(name)) for name in puts.names)
            fault = _end(whole, out)
            again = sum(count - 1 for name, count in puts.names.items() if _UNITS.search(name))
            if again > _MOST_REDONE * len(ends):
                fault = fault or f"{again} units were done twice after {len(ends)} kills"
            for place, words in enumerate(ends):
                yield Case(
                    fault="driver killed, set in an object store",
                    done=f"{words}; {len(ends)} in this build",
                    held=not fault,
                    seen=fault,
                    figures={} if place else {"units kept": kept - again, "units redone": again},
                )


def _kill(whole: Undisturbed, out: UrlPath, draw: random.Random) -> str:
    """Run a build and kill it, unless it ended before."""
    after = draw.uniform(0.3, 1.0) * whole.seconds
    alone = draw.random() < 0.5
    with (whole.scratch / "errors").open("wb") as errors:
        driver = runs.start(_command(whole, out), errors)
        time.sleep(after)
        family = runs.family(driver.pid)
        runs.kill(driver.pid, *(() if alone else family))
        driver.wait()
    return f"after {after:.1f} s, {'alone' if alone else 'with its workers'}"


def _end(whole: Undisturbed, out: UrlPath) -> str:
    """Run a build to its end: nothing where the set is the undisturbed one, else the fault."""
    ended = runs.run(*_command(whole, out))
    if ended.status:
        return ended.line or ended.errors[-400:]
    found = {
        name: hashlib.sha256((out / name).read_bytes()).hexdigest()
        for name in out.files_below()
        if WORK not in name.split("/")
    }
    names = sorted(found.keys() | whole.digests.keys())
    if other := [name for name in names if found.get(name) != whole.digests.get(name)]:
        return f"{len(other)} objects have other bytes: {other[:3]}"
    return runs.run("verify", str(out), "--quiet").line


def _command(whole: Undisturbed, out: UrlPath) -> list[str]:
    command = whole.job.command(Path("unused"))
    scratch = whole.scratch / "scratch"
    return [*command[:-1], str(out), "--set", f"job.scratch={scratch}"]
