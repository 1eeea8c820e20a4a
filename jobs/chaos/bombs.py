"""Small files that expand to gigabytes: read in bounded memory, and rejected by reason."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import zstandard

from jobs.chaos.result import Case

LINE_BYTES = 1 << 30
MOST_MEMORY = 3 << 29
"""Three times the longest line that is read: its pieces, the line, its text."""
_BLOCK = 1 << 26
_LIMIT_S = 240
_COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    ".gz": lambda block: gzip.compress(block, mtime=0),
    ".zst": lambda block: zstandard.ZstdCompressor().compress(block),
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
}
_READ = """
import json, sys
from pathlib import Path
from pipeline.reading.listing import list_inputs
from pipeline.reading.records.read import read_records
from pipeline.reading.splits import plan_splits
from pipeline.settings.documents import SourceConfig
source = SourceConfig(name="bomb", paths=(sys.argv[1],))
found, reasons = 0, []
for split in plan_splits(source, list_inputs(source), split_bytes=1 << 25):
    for batch in read_records(split, source):
        found += len(batch.texts)
        reasons += [reject.reason for reject in batch.rejects]
status = Path("/proc/self/status").read_text()  # getrusage counts the process that forked, too
peak = int(status.partition("VmHWM:")[2].split()[0]) << 10
print(json.dumps({"found": found, "reasons": reasons, "peak": peak}))
"""


def bombs(scratch: Path, *, line_bytes: int = LINE_BYTES) -> Iterator[Case]:
    """A good record and one of `line_bytes` in every compression; a text file likewise."""
    for ending, compress in _COMPRESS.items():
        for kind in ("jsonl", "txt"):
            path = scratch / f"bomb.{kind}{ending}"
            block = compress(b"a" * _BLOCK)
            start = b'{"text": "good"}\n{"text": "' if kind == "jsonl" else b"a"
            with path.open("wb") as file:
                file.write(compress(start))
                for _ in range(line_bytes // _BLOCK):
                    file.write(block)
                file.write(compress(b'"}\n'))
            yield _read(path, good=int(kind == "jsonl"), expands_to=line_bytes)
            path.unlink()


def _read(path: Path, *, good: int, expands_to: int) -> Case:
    size = path.stat().st_size
    ended = subprocess.run(
        [sys.executable, "-c", _READ, str(path)], capture_output=True, text=True, timeout=_LIMIT_S
    )
    done = f"{path.name}: {size:,} bytes that expand to {expands_to:,}"
    if ended.returncode:
        return Case(fault="bomb", done=done, held=False, seen=ended.stderr[-300:])
    found = json.loads(ended.stdout)
    held = found["found"] == good and found["reasons"] == ["too_long"]
    return Case(
        fault="bomb",
        done=done,
        held=held and found["peak"] <= MOST_MEMORY,
        seen=f"{found['found']} accepted, rejected {found['reasons']}",
        figures={"most MB in memory": found["peak"] >> 20},
    )
