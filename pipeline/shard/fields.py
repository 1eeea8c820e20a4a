"""JSON objects as dataclasses, every field of the type that its annotation names."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING
from typing import Any, TypeVar, cast

Result = TypeVar("Result")


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1 << 63


def _is_number(value: object) -> bool:
    return isinstance(value, float) or _is_integer(value)


def _is_object(value: object) -> bool:
    return isinstance(value, Mapping)


_TYPES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "bool": (lambda value: isinstance(value, bool), "true or false"),
    "int": (_is_integer, "an integer of 64 bits"),
    "int | None": (lambda value: value is None or _is_integer(value), "an integer or null"),
    "float": (_is_number, "a number"),
    "float | None": (lambda value: value is None or _is_number(value), "a number or null"),
    "str": (lambda value: isinstance(value, str), "a string"),
    "str | None": (lambda value: value is None or isinstance(value, str), "a string or null"),
    "Mapping[str, Any]": (_is_object, "an object"),
    "Mapping[str, Any] | None": (
        lambda value: value is None or _is_object(value),
        "an object or null",
    ),
    "Mapping[str, int]": (
        lambda value: _is_object(value) and all(map(_is_integer, value.values())),
        "an object of integers",
    ),
    "Mapping[str, str]": (
        lambda value: _is_object(value) and all(isinstance(v, str) for v in value.values()),
        "an object of strings",
    ),
    "tuple[int, ...]": (
        lambda value: isinstance(value, Sequence) and all(map(_is_integer, value)),
        "a list of integers",
    ),
}
"""By annotation: whether a value is of it, and what it is called. Other annotations are free."""


def from_fields(kind: Callable[..., Result], entry: Mapping[str, Any]) -> Result:
    """The dataclass from a JSON object; fields that it does not know are left aside.

    Raises:
        KeyError: a field is missing that has no default.
        ValueError: a field is of another type.
    """
    known = {
        name: about
        for name, about in cast(Any, kind).__dataclass_fields__.items()
        if name in entry or about.default is MISSING
    }
    for name, about in known.items():
        check, words = _TYPES.get(about.type, (None, ""))
        if check is not None and not check(entry[name]):
            raise ValueError(f"{name} is {entry[name]!r:.80}, must be {words}")
    return kind(**{name: entry[name] for name in known})
