"""One TOML file to settings: overrides, and mistakes in the user's words."""

from __future__ import annotations

import difflib
import tomllib
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from pipeline.config import ConfigError, RunConfig


def load_config(path: Path, overrides: tuple[str, ...] = ()) -> RunConfig:
    """Read a TOML file and apply `table.key=value` overrides (values in TOML syntax).

    Raises:
        ConfigError: unreadable file, unknown key, wrong type, missing key.
    """
    return parse_config(override(read_document(path), overrides), name=str(path))


def read_document(path: Path) -> dict[str, Any]:
    """A TOML file, not validated.

    Raises:
        ConfigError: it cannot be read, or is no TOML.
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not TOML: {error}") from error


def override(document: dict[str, Any], overrides: tuple[str, ...]) -> dict[str, Any]:
    """The document with `table.key=value` overrides applied, in place.

    Raises:
        ConfigError: one that names no place in it.
    """
    for text in overrides:
        _apply(document, text)
    return document


def parse_config(document: dict[str, Any], *, name: str) -> RunConfig:
    """Validate a parsed document; `name` is what errors call it."""
    try:
        return RunConfig.model_validate(document)
    except ValidationError as error:
        places = [problem["loc"] for problem in error.errors()]
        problems = dict.fromkeys(
            _explain(problem)
            for problem in error.errors()
            # A list of which an entry is wrong also counts as too short.
            if problem["type"] != "too_short"
            or not any(problem["loc"] == place[: len(problem["loc"])] != place for place in places)
        )
        raise ConfigError("\n".join(f"{name}: {problem}" for problem in problems)) from error


def _apply(document: dict[str, Any], override: str) -> None:
    key, equals, text = override.partition("=")
    if not equals:
        raise ConfigError(f"--set {override}: expected table.key=value")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text  # a bare word is a string
    *tables, last = key.strip().split(".")
    place: Any = document
    for table in tables:
        if isinstance(place, list) and table.isdigit() and int(table) < len(place):
            place = place[int(table)]
        elif isinstance(place, dict):
            place = place.setdefault(table, {})
        else:
            raise ConfigError(f"--set {override}: no table {table!r} in the configuration")
    if not isinstance(place, dict):
        raise ConfigError(f"--set {override}: {'.'.join(tables)} is not a table")
    place[last] = value


def _explain(problem: Any) -> str:
    names = [str(part) for part in problem["loc"] if "[" not in str(part)]  # no names of types
    place = ".".join(names) or "configuration"
    if problem["type"] != "extra_forbidden":
        message = problem["msg"].removeprefix("Value error, ").replace("tuple", "list")
        return f"{place}: {message}"
    *parents, key = problem["loc"]
    known = _known_keys(parents)
    near = difflib.get_close_matches(str(key), known, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"known here: {', '.join(known)}"
    return f"{place}: unknown key; {hint}"


def _known_keys(parents: list[Any]) -> list[str]:
    model: Any = RunConfig
    for part in parents:
        if isinstance(part, str):
            annotation = model.model_fields[part].annotation
            model = annotation if isinstance(annotation, type) else annotation.__args__[0]
    return [field.alias or name for name, field in model.model_fields.items()]
