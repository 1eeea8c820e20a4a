"""What a benchmark's figures were measured on, and how they are kept."""

from __future__ import annotations

import datetime
import importlib.metadata
import json
import os
import platform
import sys
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
_PACKAGES = ("numpy", "numba", "pyarrow", "ray", "tokenizers")


def describe() -> dict[str, Any]:
    """Processor, cores, memory, versions, command and date."""
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30),
        "python": platform.python_version(),
        "versions": {name: importlib.metadata.version(name) for name in _PACKAGES},
        "command": " ".join(["python", "-m", *_module(), *sys.argv[1:]]),
        "date": datetime.date.today().isoformat(),
    }


def save(name: str, rows: list[dict[str, Any]], *, folder: Path = RESULTS, **about: Any) -> Path:
    """Keep a benchmark's rows as `NAME.json`, with the machine they were measured on.

    `about` is what else belongs to all of them.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.json"
    path.write_text(json.dumps({"machine": describe(), **about, "rows": rows}, indent=1) + "\n")
    return path


def _module() -> list[str]:
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return [spec.name] if spec else []


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor()
