"""`steelyard profile`: what a model's layer takes on this machine, written for the planner."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jobs.progress import Reporter
from pipeline.config import ConfigError
from pipeline.files.atomic import write_atomically
from pipeline.shard.json_files import read_object
from trainer.errors import TrainerError, require_torch

if TYPE_CHECKING:
    from trainer.layer_times import LayerTimes

_TYPES = ("bfloat16", "float16", "float32", "float64")
_LONGEST = {"cuda": 131_072, "cpu": 1024}
"""Tokens of the longest piece that is measured unless something else is asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileRequest:
    """What to measure; 0 and "auto" leave a choice to the device.

    Args:
        model: what the profile calls it.
        config: of its `config.json`.
        device: auto, cuda, cuda:N or cpu.
        dtype: torch's name of it, or auto.
        backend: of attention.
        tp_size: ranks that share a layer.
        max_tokens: of the longest piece.
        factor: between one length and the next.
        repeats: runs of a call, whose median counts.
    """

    model: str
    config: Mapping[str, Any]
    device: str = "auto"
    dtype: str = "auto"
    backend: str = "auto"
    tp_size: int = 1
    max_tokens: int = 0
    factor: int = 2
    repeats: int = 7


def write_profile(request: ProfileRequest, out: Path, reporter: Reporter) -> dict[str, Any]:
    """Measure, and write the profile to `out`; the document.

    Raises:
        ConfigError: `out` cannot be written.
        TrainerError: no torch, no such device, or a layer or shape that cannot be measured there.
    """
    if out.is_dir():
        raise ConfigError(f"{out} is a directory; give the profile a file name")
    out.parent.mkdir(parents=True, exist_ok=True)  # fails here and not after minutes
    _, document = profile_of(request, reporter)
    write_atomically(out, (json.dumps(document, indent=1) + "\n").encode())
    for name, tokens in document["about"]["dropped"].items():
        if tokens:
            reporter.line(f"noise: {name} at {tokens} tokens does not rise and is left out")
    reporter.line(f'{out}: use it as workload.profile = "{out}"')
    return document


def profile_of(request: ProfileRequest, reporter: Reporter) -> tuple[LayerTimes, dict[str, Any]]:
    """What measures a layer, and the document of a profile that it made.

    Raises:
        TrainerError: as `write_profile`.
    """
    torch = require_torch()
    from packer.profile import Profile
    from trainer.attention import backend_name
    from trainer.layer_times import LayerTimes
    from trainer.profile import Sizes, measure_profile
    from trainer.shape import layer_shape
    from trainer.timing import describe, open_device

    shape = layer_shape(request.config).share(request.tp_size)
    device = open_device(request.device)
    dtype = request.dtype
    if dtype == "auto":
        dtype = "bfloat16" if device.type == "cuda" else "float32"
    if dtype not in _TYPES:
        raise TrainerError(f"dtype is {dtype!r}; known are auto, {', '.join(_TYPES)}")
    sizes = Sizes.up_to(request.max_tokens or _LONGEST[device.type], request.factor)
    times = LayerTimes.on(
        shape,
        backend=request.backend,
        device=device,
        dtype=getattr(torch, dtype),
        repeats=request.repeats,
    )
    about = {
        "model": request.model,
        "layer": shape.as_dict(),
        **describe(device),
        "dtype": dtype,
        "backend": backend_name(request.backend, device),
    }
    name, total = f"profile on {about['device']}", sizes.num_measurements
    with reporter.stage(name, total=total, unit="measurements") as stage:
        document = measure_profile(times, sizes, about, lambda: stage.advance(1))
    try:
        Profile.from_tables(document)
    except ValueError as error:
        raise TrainerError(
            f"the times that were measured make no profile: {error}; measure longer pieces, or on "
            "a machine that does nothing else"
        ) from error
    return times, document


def read_config(path: Path) -> dict[str, Any]:
    """A model's `config.json`.

    Raises:
        ConfigError: it cannot be read.
    """
    try:
        return read_object(path)
    except ValueError as error:
        raise ConfigError(f"{path}: {error}") from error
