"""Workloads of pieces, worked out anew from docs/FORMAT.md, section 6, one length at a time."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping
from math import floor
from typing import Any

import numpy as np

from pipeline.shard.manifest import Manifest, WorkloadModel
from pipeline.verify.result import VerifyError

Work = Callable[[int], int]
"""Tokens of a piece to its workload."""


def check_model(manifest: Manifest) -> None:
    """Refuse a workload model that cannot be worked out.

    Raises:
        VerifyError: it is not known, or its fields are missing or malformed.
    """
    piece_workloads(manifest, np.array([1]))


def piece_workloads(manifest: Manifest, tokens: np.ndarray) -> np.ndarray:
    """What the manifest's model says that pieces cost, int64, (pieces,).

    Args:
        manifest: of the set.
        tokens: of each piece, (pieces,).

    Raises:
        VerifyError: as `check_model`.
    """
    lengths, which = np.unique(tokens, return_inverse=True)
    path = manifest.directory / "manifest.json"
    model = manifest.workload
    if model.model not in _MODELS:
        raise VerifyError(
            f"workload.model is {model.model!r}; this program can only re-compute "
            f"{', '.join(repr(name) for name in _MODELS)}",
            path=path,
        )
    try:
        work = _MODELS[model.model](model)
        return np.array([work(int(d)) for d in lengths], dtype=np.int64)[which]
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        raise VerifyError(f"the workload model is malformed: {error!r}", path=path) from error


def _quadratic(model: WorkloadModel) -> Work:
    crossover, scale = model.parameters["crossover"], model.scale
    return lambda d: ((d * crossover + d * d) * scale + crossover // 2) // crossover


def _layers(model: WorkloadModel) -> Work:
    kinds = [
        (span["mask"], span["tokens"], span["crossover"]) for span in model.parameters["spans"]
    ]
    if model.parameters["crossover"] is not None:
        kinds.append(("full", 0, model.parameters["crossover"]))
    scale = model.scale

    def work(d: int) -> int:
        shares = [
            (_DOUBLE_PAIRS[mask](d, tokens) * scale + crossover // 2) // crossover
            for mask, tokens, crossover in kinds
        ]
        return d * scale + sum(shares)

    return work


def _window(d: int, window: int) -> int:
    return d * d if d <= window else 2 * window * d - window * window


def _chunk(d: int, chunk: int) -> int:
    return d // chunk * chunk * chunk + (d % chunk) ** 2


_DOUBLE_PAIRS = {"full": lambda d, _: d * d, "window": _window, "chunk": _chunk}


def _profile(model: WorkloadModel) -> Work:
    linear, attention = model.parameters["linear"], model.parameters["attention"]
    unit = linear["time"][-1] / linear["tokens"][-1]
    return lambda d: floor(
        (_linear_time(linear, d) + _attention_time(attention, d)) / unit * model.scale + 0.5
    )


def _linear_time(table: Mapping[str, Any], d: int) -> float:
    tokens, time = [0, *table["tokens"]], [0.0, *table["time"]]
    i = _segment(tokens, d)
    return _line(d, tokens[i], tokens[i + 1], time[i], time[i + 1])


def _attention_time(table: Mapping[str, Any], d: int) -> float:
    tokens, time = table["tokens"], table["time"]
    if d <= tokens[0]:
        return time[0] * float(d * d) / float(tokens[0] * tokens[0])
    i = _segment(tokens, d)
    here, there = time[i] / tokens[i], time[i + 1] / tokens[i + 1]
    if there >= here:
        return d * _line(d, tokens[i], tokens[i + 1], here, there)
    return _line(d, tokens[i], tokens[i + 1], time[i], time[i + 1])


def _segment(tokens: list[int], d: int) -> int:
    """The points around d, by the first of them; beyond the last point, the last two."""
    return min(max(bisect_left(tokens, d) - 1, 0), len(tokens) - 2)


def _line(d: int, left: int, right: int, low: float, high: float) -> float:
    return low + (high - low) * (d - left) / (right - left)


_MODELS: dict[str, Callable[[WorkloadModel], Work]] = {
    "quadratic": _quadratic,
    "layers": _layers,
    "profile": _profile,
}
