"""`python -m jobs.bench.run [NAME ...]`: measure, print and keep; all of them without a name."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from typing import Any

from jobs.bench import (
    balance,
    build,
    cp,
    growth,
    huge,
    machine,
    memory,
    orders,
    packing,
    reader,
    search,
    stages,
    table2,
)

BENCHMARKS: dict[str, Callable[[], list[dict[str, Any]]]] = {
    "packing": packing.run,
    "search": search.run,
    "balance": balance.run,
    "schedule": balance.run_schedule,
    "orders": orders.run,
    "table2": table2.run,
    "cp": cp.run,
    "build": build.run,
    "memory": memory.run,
    "huge": huge.run,
    "reader": reader.run,
    "growth": growth.run,
    "stages": stages.run,
}


def main(names: Sequence[str]) -> None:
    """Run the named benchmarks one after another; nothing else should run on the machine."""
    unknown = set(names) - set(BENCHMARKS)
    if unknown:
        raise SystemExit(
            f"no benchmark {', '.join(sorted(unknown))}; known: {', '.join(BENCHMARKS)}"
        )
    for name in names or BENCHMARKS:
        rows = BENCHMARKS[name]()
        path = machine.save(name, rows)
        for row in rows:
            print(json.dumps(row))
        print(f"{name}: {len(rows)} rows in {path}", file=sys.stderr)


if __name__ == "__main__":
    main(sys.argv[1:])
