"""The state of a run: model, optimiser, and beside them its lineage, with the step that comes next.

Every rank writes its shards and names are the whole model's, so any mesh can read what another one
wrote. Where a run stands in the data is the step alone, whatever dp is.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.checkpoint.state_dict_loader import load as load_state
from torch.distributed.checkpoint.state_dict_saver import save as save_state

from trainer.errors import TrainerError
from trainer.lineage import Lineage
from trainer.model import Stage
from trainer.safe_loading import SafePlanner, SafeReader

_OPTIONS = StateDictOptions(flatten_optimizer_state_dict=True, strict=False)


def save(root: Path, stage: Stage, optimizer: torch.optim.Optimizer, lineage: Lineage) -> Path:
    """Write `root/step-N`; a collective call. It appears under that name when it is whole."""
    path = root / f"step-{lineage.next_step:08d}"
    scratch = path.with_suffix(".partial")
    save_state(_state(stage, optimizer), checkpoint_id=scratch)
    dist.barrier()
    if dist.get_rank() == 0:
        lineage.write(scratch)
        if path.exists():
            shutil.rmtree(path)
        scratch.rename(path)
    dist.barrier()
    return path


def load(path: Path, stage: Stage, optimizer: torch.optim.Optimizer) -> None:
    """Read a checkpoint into the stage and its optimiser; a collective call.

    The optimiser's moments come from it, its settings stay what they are.

    Raises:
        TrainerError: it is damaged.
    """
    state = _state(stage, optimizer)
    chosen = [
        {name: value for name, value in group.items() if name != "params"}
        for group in optimizer.param_groups
    ]
    try:
        load_state(state, storage_reader=SafeReader(path), planner=SafePlanner())
    except (CheckpointException, RuntimeError, ValueError, OSError) as error:
        reason = str(error).strip().splitlines()[-1]
        raise TrainerError(
            f"{path}: {reason}; it is damaged: remove it, or name another checkpoint.directory"
        ) from error
    set_model_state_dict(stage, state["model"], options=_OPTIONS)
    set_optimizer_state_dict(stage, optimizer, state["optimizer"], options=_OPTIONS)
    for group, settings in zip(optimizer.param_groups, chosen, strict=True):
        group.update(settings)


def _state(stage: Stage, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    return {
        "model": get_model_state_dict(stage, options=_OPTIONS),
        "optimizer": get_optimizer_state_dict(stage, optimizer, options=_OPTIONS),
    }
