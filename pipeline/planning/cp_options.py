"""What CP plans of a degree are made with: from settings, to a manifest, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from packer.context_parallel.head_tail import pad_multiple
from packer.context_parallel.options import CANDIDATES, CPOptions
from packer.context_parallel.strategies import ADAPTIVE
from packer.throughput import FLAT
from packer.workload import Workload
from pipeline.built import throughput_of
from pipeline.settings.context_parallel import ContextParallelSettings

PADDED = "padded_head_tail"
"""The strategy that pads."""
_FLAT, _PROFILE = "flat", "profile"


def cp_options(settings: ContextParallelSettings, max_tokens: int) -> CPOptions:
    """What strategies get to know of the settings.

    Args:
        settings: `[context_parallel]`.
        max_tokens: S_max, which padded micro-batches must not exceed.
    """
    return CPOptions(
        throughput=FLAT if settings.throughput == _FLAT else None,
        kv_exchange=settings.kv_exchange,
        pad_to=settings.pad_to,
        max_tokens=max_tokens,
        candidates=settings.candidates,
    )


def describe_options(
    strategy: str, options: CPOptions, workload: Workload, cp_size: int
) -> dict[str, Any]:
    """The fields by which the manifest says how a degree was planned (FORMAT.md, section 6).

    Everything that a plan depends on is in them, but the degree, the workload model, and S_max.
    """
    fields: dict[str, Any] = {
        "strategy": strategy,
        "kv_exchange": options.kv_exchange,
        "throughput": _throughput(options, workload),
    }
    if strategy == ADAPTIVE:
        fields["candidates"] = list(options.candidates)
    if strategy == PADDED:
        fields["pad_multiple"] = pad_multiple(cp_size, options.pad_to)
    return fields


def options_of(fields: Mapping[str, Any], workload: Workload) -> CPOptions:
    """The options by which work is predicted, from such fields.

    Args:
        fields: a degree's entry in the manifest's `cp`.
        workload: the manifest's.

    Raises:
        ValueError: a field is missing or malformed.
    """
    try:
        return CPOptions(
            kv_exchange=float(fields["kv_exchange"]),
            throughput=throughput_of(fields["throughput"], workload),
            candidates=tuple(fields.get("candidates", CANDIDATES)),
        )
    except (KeyError, TypeError) as error:
        raise ValueError(f"a field is missing or malformed: {error!r}") from error


def _throughput(options: CPOptions, workload: Workload) -> str | dict[str, Any]:
    """A name, or the table where nothing else in the manifest has it."""
    grid = options.throughput_of(workload)
    if grid == FLAT:
        return _FLAT
    measured = None if workload.profile is None else workload.profile.throughput
    return _PROFILE if grid == measured else grid.as_dict()
