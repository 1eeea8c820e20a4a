"""`python -m jobs.chaos`: try every fault, say what came of it; exit 1 where one did not hold."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from jobs.chaos.result import Case, show

FAULTS = (
    "drivers",
    "workers",
    "chains",
    "stored",
    "flips",
    "damage",
    "fuzz",
    "bombs",
    "environment",
)


def main(arguments: list[str] | None = None) -> int:
    """Run the faults that are asked for; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m jobs.chaos", description=__doc__)
    parser.add_argument("--only", default=",".join(FAULTS), help="comma-separated: %(default)s")
    parser.add_argument(
        "--kills",
        type=int,
        default=10,
        help="of drivers and workers of builds; two in five as many of extensions and of forks",
    )
    parser.add_argument("--flips", type=int, default=100)
    parser.add_argument("--inputs", type=int, default=300, help="of each kind that is fuzzed")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="a line a case, in place of the table")
    given = parser.parse_args(arguments)
    wanted = given.only.split(",")
    if unknown := set(wanted) - set(FAULTS):
        parser.error(f"no fault {sorted(unknown)[0]!r}; there are {', '.join(FAULTS)}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(2))  # so that what is mounted is unmounted
    cases = []
    with tempfile.TemporaryDirectory(prefix="steelyard-chaos-") as scratch:
        for name, run in _runs(Path(scratch), given):
            if name not in wanted:
                continue
            began = time.monotonic()
            for case in run():
                cases.append(case)
                if given.json:
                    sys.stdout.write(case.as_json() + "\n")
                    sys.stdout.flush()
            sys.stderr.write(f"{name}: {time.monotonic() - began:.0f} s\n")
    if not given.json:
        show(cases)
    return 0 if cases and all(case.held for case in cases) else 1


def _runs(
    scratch: Path, given: argparse.Namespace
) -> Iterator[tuple[str, Callable[[], Iterator[Case]]]]:
    """Every fault's name, and what tries it."""
    os.environ.setdefault("NUMBA_DISABLE_JIT", "1")  # before anything of ours is imported
    os.environ.setdefault("PYTHONWARNINGS", "ignore")
    from jobs.chaos import (
        bombs,
        chains,
        damage,
        environment,
        flips,
        fuzz,
        kills,
        stored,
        workers,
    )
    from jobs.chaos.small_set import SmallSet
    from jobs.chaos.undisturbed import undisturbed_build

    seed = given.seed

    def room(name: str) -> Path:
        (scratch / name).mkdir()
        return scratch / name

    def killed_workers() -> Iterator[Case]:
        whole = undisturbed_build(room("workers"))
        yield from workers.kill_workers(whole, given.kills, seed)
        yield from workers.kill_every_worker(whole)
        yield from workers.kill_raylet(whole, seed)

    def killed_chains() -> Iterator[Case]:
        place, some = room("chains"), -(-2 * given.kills // 5)
        longer = chains.undisturbed_extension(place)
        yield from kills.kill_drivers(longer, some, seed)
        yield from workers.kill_workers(longer, some, seed)
        fork = chains.undisturbed_fork(room("forks"), longer.whole)
        yield from kills.kill_drivers(fork, some, seed)

    def fuzzed() -> Iterator[Case]:
        place = room("fuzz")
        small = SmallSet(place / "small")
        yield from fuzz.fuzz_configs(small, given.inputs, seed, place)
        yield from fuzz.fuzz_records(small, given.inputs, seed, place)
        yield from fuzz.fuzz_manifests(small, given.inputs, seed)

    def damaged() -> Iterator[Case]:
        place = room("damage")
        yield from damage.damage(SmallSet(place / "a"), SmallSet(place / "b", seed=9))

    yield (
        "drivers",
        lambda: kills.kill_drivers(undisturbed_build(room("drivers")), given.kills, seed),
    )
    yield "workers", killed_workers
    yield "chains", killed_chains
    yield (
        "stored",
        lambda: stored.kill_stored(undisturbed_build(room("stored")), -(-given.kills // 3), seed),
    )
    yield "flips", lambda: flips.flip_bits(SmallSet(room("flips")), given.flips, seed)
    yield "damage", damaged
    yield "fuzz", fuzzed
    yield "bombs", lambda: bombs.bombs(room("bombs"))
    yield "environment", lambda: environment.faults(room("environment"))


if __name__ == "__main__":
    raise SystemExit(main())
