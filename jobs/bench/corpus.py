"""Real text at size, from what every installation has: the sources of the installed packages."""

from __future__ import annotations

import json
import sysconfig
from collections.abc import Iterator
from pathlib import Path

_LONGEST = 4_000_000
_SUFFIXES = (
    ".py",
    ".pyi",
    ".h",
    ".hpp",
    ".cuh",
    ".js",
    ".c",
    ".pyx",
    ".pxd",
    ".txt",
    ".md",
    ".rst",
)


def texts() -> Iterator[str]:
    """Source files of the standard library and of the installed packages, in path order."""
    paths = sysconfig.get_paths()
    for root in sorted({paths["stdlib"], paths["purelib"], paths["platlib"]}):
        for path in sorted(Path(root).rglob("*"), key=str):
            if path.suffix in _SUFFIXES and path.is_file():
                text = path.read_bytes().decode("utf-8", errors="replace")
                if text.strip():
                    yield text


def _usable() -> Iterator[str]:
    """Texts that are not generated tables."""
    return (text for text in texts() if len(text) < _LONGEST)


def write_jsonl(path: Path, *, megabytes: float) -> int:
    """Write about so many megabytes of text as JSONL, once; the bytes of text in it.

    Raises:
        ValueError: this installation does not hold that much text.
    """
    note = path.with_suffix(".bytes")
    if note.exists():
        return int(note.read_text())
    path.parent.mkdir(parents=True, exist_ok=True)
    written = 0
    with path.open("w", encoding="utf-8") as file:
        for text in _usable():
            if written >= megabytes * 1e6:
                break
            file.write(json.dumps({"text": text}, ensure_ascii=False) + "\n")
            written += len(text.encode())
    if written < megabytes * 1e6:
        path.unlink()
        raise ValueError(
            f"the installed packages hold {written / 1e6:.0f} MB of text, {megabytes:.0f} were "
            "asked for; install more packages or ask for less"
        )
    note.write_text(str(written))
    return written
