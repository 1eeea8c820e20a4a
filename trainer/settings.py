"""What a run is, from a TOML file; docs/TRAINING.md says what each setting means."""

from __future__ import annotations

import difflib
import math
import sys
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any, get_type_hints

from trainer.errors import TrainerError

PRECISIONS = ("bfloat16", "float32", "float64")
_RANGES: tuple[tuple[str, int, float, tuple[str, ...]], ...] = (
    ("mesh", 1, math.inf, ("dp_size", "cp_size", "pp_size", "tp_size")),
    ("optimizer", 0, math.inf, ("lr", "min_lr", "warmup_steps", "eps", "weight_decay")),
    ("optimizer", 0, math.inf, ("max_grad_norm",)),
    ("optimizer", 0, 1, ("beta1", "beta2")),
    ("run", 0, math.inf, ("steps", "prefetch", "peak_tflops")),
    ("run", 1, math.inf, ("loss_rows",)),
    ("checkpoint", 0, math.inf, ("every_steps",)),
)
"""Table, least value, what values are below, and the settings of which that holds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSettings:
    """Which model; its weights begin at random."""

    config: str
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class MeshSettings:
    """Ranks along each axis; their product is the number of processes."""

    dp_size: int = 1
    cp_size: int = 1
    pp_size: int = 1
    tp_size: int = 1

    @property
    def world_size(self) -> int:
        return self.dp_size * self.cp_size * self.pp_size * self.tp_size


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerSettings:
    """AdamW, its learning rate over the steps, and clipping."""

    lr: float = 3e-4
    min_lr: float = 3e-5
    warmup_steps: int = 0
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-8
    weight_decay: float = 0.1
    max_grad_norm: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """How it is computed."""

    steps: int = 0
    device: str = "auto"
    precision: str = "auto"
    attention: str = "auto"
    recompute: bool = False
    loss_rows: int = 2048
    tokens_from: str = "shards"
    prefetch: int = 2
    peak_tflops: float = 0.0
    times: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSettings:
    """Where the state goes, and how often."""

    directory: str = ""
    every_steps: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """All of a run."""

    model: ModelSettings
    mesh: MeshSettings = field(default_factory=MeshSettings)
    optimizer: OptimizerSettings = field(default_factory=OptimizerSettings)
    run: RunSettings = field(default_factory=RunSettings)
    checkpoint: CheckpointSettings = field(default_factory=CheckpointSettings)

    def __post_init__(self) -> None:
        for table, least, below, names in _RANGES:
            for name in names:
                value = getattr(getattr(self, table), name)
                if not least <= value < below:
                    bound = "finite" if below == math.inf else f"below {below}"
                    raise TrainerError(
                        f"{table}.{name} is {value}; it must be {least} or more and {bound}"
                    )
        for name, value, known in (
            ("run.precision", self.run.precision, ("auto", *PRECISIONS)),
            ("run.tokens_from", self.run.tokens_from, ("shards", "stores")),
        ):
            if value not in known:
                raise TrainerError(f"{name} is {value!r}; known are {', '.join(known)}")
        if self.checkpoint.every_steps and not self.checkpoint.directory:
            raise TrainerError("checkpoint.every_steps is set; say where with checkpoint.directory")


def load_settings(path: Path, overrides: Sequence[str] = ()) -> Settings:
    """The settings of a file.

    Args:
        path: TOML.
        overrides: `table.key=value` each, the value as TOML has it or else a string.

    Raises:
        TrainerError: it cannot be read, or something in it is unknown or of the wrong kind.
    """
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise TrainerError(f"{path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise TrainerError(f"{path}: not TOML: {error}") from error
    for override in overrides:
        name, equals, text = override.partition("=")
        table, dot, key = name.partition(".")
        if not equals or not dot or not isinstance(document.setdefault(table, {}), dict):
            raise TrainerError(f"--set {override}: write it as table.key=value")
        document[table][key] = _value(text)
    try:
        return parse_settings(document)
    except TrainerError as error:
        raise TrainerError(f"{path}: {error}") from error


def parse_settings(document: Mapping[str, Any]) -> Settings:
    """As `load_settings`, from the tables."""
    return _read(Settings, document, "")


def _value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):
        return text


def _read(kind: type, table: Mapping[str, Any], path: str) -> Any:
    known = get_type_hints(kind)
    for name in table:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            hint = f"; did you mean {path}{near[0]}?" if near else f"; known: {', '.join(known)}"
            raise TrainerError(f"no setting {path}{name}{hint}")
    required = {"model", "config"} & {entry.name for entry in fields(kind)}
    for name in required - set(table):
        raise TrainerError(f"{path}{name} is missing")
    values = {}
    for name, value in table.items():
        wanted: type = known[name]
        if is_dataclass(wanted):
            if not isinstance(value, Mapping):
                raise TrainerError(f"{path}{name} is {value!r}; it must be a table")
            values[name] = _read(wanted, value, f"{path}{name}.")
            continue
        if wanted is float and type(value) is int and abs(value) <= sys.float_info.max:
            value = float(value)
        if type(value) is not wanted:
            raise TrainerError(f"{path}{name} is {value!r}; it must be of type {wanted.__name__}")
        values[name] = value
    return kind(**values)
