"""What tests run on ranks; imported once, by the server that ranks are forked from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet  # noqa: F401  (for the server)
import torch.distributed.checkpoint.state_dict  # noqa: F401
from torch.distributed.tensor import DTensor

from trainer.prepare import prepare
from trainer.settings import parse_settings
from trainer.train import Run, open_run

Arrays = dict[str, np.ndarray]


def open_settings(tables: Mapping[str, Any], shards: str, world_size: int) -> Run:
    environment = {"WORLD_SIZE": str(world_size)}
    return open_run(prepare(parse_settings(tables), Path(shards), environment))


def train(
    rank: int,
    runs: Sequence[tuple[Mapping[str, Any], str]],
    world_size: int,
    steps: Sequence[int],
) -> list[list[dict[str, Any]]]:
    """Some steps of each run, (settings, set): their records, on the first ranks with gradients."""
    results = []
    for tables, shards in runs:
        run = open_settings(tables, shards, world_size)
        records = []
        for step in steps:
            record = run.step(step)
            record["gradients"] = gradients(run)
            records.append(record)
        results.append(records)
    return results


def gradients(run: Run) -> Arrays:
    """The whole gradients of this stage, on one rank of those that share it; elsewhere nothing."""
    whole = {}
    for name, parameter in run.stage.named_parameters():
        assert isinstance(parameter.grad, DTensor)
        whole[name] = parameter.grad.full_tensor().numpy()
    mesh = run.mesh
    alone = mesh.rank("dp") == mesh.rank("cp") == mesh.rank("tp") == 0
    return whole if alone else {}


def train_on(
    rank: int, tables: Mapping[str, Any], shards: str, world_size: int
) -> tuple[list[dict[str, Any]], list[str]]:
    """As the command does: from the newest checkpoint to the last step; records and notes."""
    records: list[dict[str, Any]] = []
    notes: list[str] = []
    open_settings(tables, shards, world_size).steps(records.append, notes.append)
    return records, notes
