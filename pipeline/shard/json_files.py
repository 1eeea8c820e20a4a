"""Reading a JSON object that a user gives: a model's `config.json`, a profile."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def read_object(path: Path) -> dict[str, Any]:
    """The object that a file holds.

    Raises:
        ValueError: it cannot be read or is no JSON object; says which, without the path.
    """
    try:
        document = json.loads(path.read_bytes())
    except OSError as error:
        raise ValueError(error.strerror) from error
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not JSON: {error}") from error
    if not isinstance(document, dict):
        raise ValueError("not a JSON object")
    return document
