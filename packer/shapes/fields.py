"""Numbers out of a `config.json`, with messages for those that are not there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Config = Mapping[str, Any]
"""The text part of a `config.json`."""
ELSEWHERE = "set workload.crossover or workload.profile instead"
"""What to do about a model that cannot be read."""


def number(config: Config, *names: str, default: int | None = None) -> int:
    """The first of these fields that is there and not null; at least 0.

    Raises:
        ValueError: it is no whole number, or none is there and there is no default.
    """
    for name in names:
        value = config.get(name)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int | float) or value != int(value):
            raise ValueError(f"the model's {name} is {value!r}, not a whole number; {ELSEWHERE}")
        if value < 0:
            raise ValueError(f"the model's {name} is {value}; it must not be negative")
        return int(value)
    if default is None:
        raise ValueError(f"the model's config has no {' or '.join(names)}; {ELSEWHERE}")
    return default


def positive(config: Config, *names: str, default: int | None = None) -> int:
    """As `number`, at least 1."""
    value = number(config, *names, default=default)
    if value < 1:
        raise ValueError(f"the model's {' or '.join(names)} is {value}; it must be at least 1")
    return value


def numbers(config: Config, name: str) -> Sequence[int] | None:
    """A field that is a list of whole numbers; None where it is missing, null or empty.

    Raises:
        ValueError: it is something else.
    """
    value = config.get(name)
    if not value:
        return None
    is_list = isinstance(value, Sequence) and not isinstance(value, str)
    if not is_list or not all(isinstance(entry, int) for entry in value):
        raise ValueError(f"the model's {name} is {value!r}, not a list of numbers; {ELSEWHERE}")
    return value
