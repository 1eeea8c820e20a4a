"""Does the plan fit the machine? Predicted work against measured time.

Measured is what a rank spends on a micro-batch, forward and backward, summed over pipeline stages,
without the time in the exchange of keys, where a cp rank also waits for the others. Predicted is
the plan's. Units differ, so what is compared is shape: the slowest over the mean.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from trainer.batches import Batch
from trainer.communication import Mesh


def gather_times(mesh: Mesh, batches: list[Batch]) -> np.ndarray:
    """What every rank predicted and measured; a collective call.

    Returns:
        float64, (dp, micro-batches, cp, 3): slot, predicted, milliseconds.
    """
    spent = mesh.stopwatch.read()
    rows = [
        (batch.slot, batch.predicted, spent["run", i] - spent["exchange", i])
        for i, batch in enumerate(batches)
    ]
    mine = torch.tensor(rows, dtype=torch.float64, device=mesh.device)
    everyone = mine.new_empty(dist.get_world_size() * len(rows), 3)
    dist.all_gather_single(everyone, mine)
    sizes = [mesh.size(axis) for axis in ("pp", "dp", "cp", "tp")]
    table = everyone.cpu().numpy().reshape(*sizes, len(rows), 3).max(axis=3)  # the slowest of tp
    table[..., 2] = table[..., 2].sum(axis=0)
    return table[0].swapaxes(1, 2)


def compare(table: np.ndarray) -> dict[str, Any]:
    """The figures of a step, from what `gather_times` gave.

    `micro_batch` compares the slowest cp ranks of all micro-batches with one another, `cp_rank` the
    slowest rank of each with the mean of its ranks; `correlation` is over all of them.
    """
    figures: dict[str, Any] = {}
    for name, values in (("predicted", table[..., 1]), ("measured", table[..., 2])):
        slowest, mean = values.max(axis=-1), values.mean(axis=-1)
        figures[name] = {
            "micro_batch": _ratio(slowest.max(), slowest.mean()),
            "cp_rank": _ratio(slowest.sum(), mean.sum()),
        }
    predicted, measured = table[..., 1].ravel(), table[..., 2].ravel()
    spread = predicted.std() * measured.std()
    covariance = ((predicted - predicted.mean()) * (measured - measured.mean())).mean()
    figures["correlation"] = round(covariance / spread, 4) if spread else None
    return figures


def rows_of(table: np.ndarray) -> list[dict[str, Any]]:
    """A row a micro-batch and cp rank, from what `gather_times` gave."""
    return [
        {
            "slot": int(slot),
            "cp_rank": cp_rank,
            "predicted": round(float(predicted), 1),
            "measured_ms": round(float(milliseconds), 3),
        }
        for micro_batches in table
        for ranks in micro_batches
        for cp_rank, (slot, predicted, milliseconds) in enumerate(ranks)
    ]


def _ratio(highest: float, mean: float) -> float | None:
    return round(float(highest / mean), 4) if mean else None
