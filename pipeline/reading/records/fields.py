"""What is kept of a record beside its text: chosen columns as JSON, and its id."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

MAX_METADATA_BYTES = 1 << 16
"""Most bytes of a record's metadata that are kept: an index is read whole."""
_DEPTH = 100


def metadata_of(values: Mapping[str, Any], columns: Sequence[str]) -> str | None:
    """The columns of a record as a JSON object with sorted keys; null for those it lacks.

    Dates, decimals and the like become strings, bytes hexadecimal; numbers that JSON does not have,
    and what lies deeper than 100 levels, null. None where no columns are kept.
    """
    if not columns:
        return None
    kept = {name: _plain(values.get(name), _DEPTH) for name in columns}
    return json.dumps(kept, sort_keys=True, separators=(",", ":"))


def id_of(values: Mapping[str, Any], column: str | None) -> str | None:
    """A record's id as JSON, if it is a string or a whole number: 1 and "1" are two ids."""
    found = values.get(column) if column is not None else None
    if isinstance(found, str | int) and not isinstance(found, bool):
        return json.dumps(found)
    return None


def _plain(value: Any, depth: int) -> Any:
    """A value as JSON has it."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, bytes):
        return value.hex()
    if not depth:
        return None
    if isinstance(value, Mapping):
        return {str(key): _plain(inner, depth - 1) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner, depth - 1) for inner in value]
    return str(value)
