"""`steelyard` as a user starts it, in this process."""

from __future__ import annotations

import json

import pytest

from jobs.cli import main


def to_toml(document: dict[str, object]) -> str:
    """Enough of TOML for a configuration: tables of plain values and lists of tables."""
    lines = []
    for name, value in document.items():
        tables = value if isinstance(value, list) else [value]
        for table in tables:
            lines.append(f"[[{name}]]" if isinstance(value, list) else f"[{name}]")
            lines += [f"{key} = {json.dumps(entry)}" for key, entry in table.items()]
    return "\n".join(lines) + "\n"


def run(*arguments: str) -> int:
    """The exit status of `steelyard ARGUMENTS`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["steelyard", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
    code = ended.value.code
    return code if isinstance(code, int) else 0 if code is None else 1
