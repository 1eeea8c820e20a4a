"""The workload model that a configuration asks for."""

from __future__ import annotations

from pathlib import Path

from packer.hardware import Hardware, workload_of_model
from packer.profile import parse_profile
from packer.shapes.read import shape_of
from packer.workload import SCALE, Workload
from pipeline.config import ConfigError
from pipeline.settings.cluster import HardwareSettings, WorkloadSettings
from pipeline.shard.json_files import read_object

_TERA, _GIGA = 1e12, 1e9


def resolve_workload(settings: WorkloadSettings) -> Workload:
    """The workload model of a configuration.

    Raises:
        ConfigError: a file that cannot be read, or from which no model follows.
    """
    constant = settings.constant_tokens * SCALE
    if settings.profile is not None:
        return workload_of_profile(Path(settings.profile), constant=constant)
    if settings.model_config_path is not None:
        return workload_of_config(
            Path(settings.model_config_path), settings.hardware, constant=constant
        )
    return Workload(crossover=settings.crossover, constant=constant)


def workload_of_config(
    path: Path, settings: HardwareSettings | None = None, *, constant: int = 0
) -> Workload:
    """The workload model of a model's `config.json`.

    Raises:
        ConfigError: the file cannot be read, or the model is not understood.
    """
    try:
        hardware = None if settings is None else _hardware(settings)
        return workload_of_model(shape_of(read_object(path)), hardware, constant=constant)
    except ValueError as error:
        raise ConfigError(f"{path}: {error}") from error


def workload_of_profile(path: Path, *, constant: int = 0) -> Workload:
    """The workload model of a profile file, its own constant added to the one given.

    Raises:
        ConfigError: the file cannot be read, or is no good profile.
    """
    try:
        profile, time = parse_profile(read_object(path))
        return Workload(
            crossover=None,
            profile=profile,
            constant=constant + profile.constant_work(time, scale=SCALE),
        )
    except ValueError as error:
        raise ConfigError(f"{path}: {error}") from error


def _hardware(settings: HardwareSettings) -> Hardware:
    speeds = {
        f"{axis}_bytes_per_s": speed * _GIGA
        for axis, speed in (("tp", settings.tp_gb_per_s), ("cp", settings.cp_gb_per_s))
        if speed is not None
    }
    return Hardware(
        gemm_flops=settings.gemm_tflops * _TERA,
        attention_flops=settings.attention_tflops * _TERA,
        tp_size=settings.tp_size,
        cp_size=settings.cp_size,
        element_bytes=settings.element_bytes,
        **speeds,
    )
