"""The state of a run: model, optimiser, and one number, the step that comes next.

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
from trainer.model import Stage

_OPTIONS = StateDictOptions(flatten_optimizer_state_dict=True, strict=False)


def save(root: Path, stage: Stage, optimizer: torch.optim.Optimizer, next_step: int) -> Path:
    """Write `root/step-N`; a collective call. It appears under that name when it is whole."""
    path = root / f"step-{next_step:08d}"
    scratch = path.with_suffix(".partial")
    save_state(_state(stage, optimizer, next_step), checkpoint_id=scratch)
    dist.barrier()
    if dist.get_rank() == 0:
        if path.exists():
            shutil.rmtree(path)
        scratch.rename(path)
    dist.barrier()
    return path


def latest(root: Path) -> Path | None:
    """The checkpoint of the highest step."""
    return max((path for path in root.glob("step-*") if not path.suffix), default=None)


def load(path: Path, stage: Stage, optimizer: torch.optim.Optimizer) -> int:
    """Read a checkpoint into the stage and its optimiser; a collective call.

    Returns:
        The step that comes next.

    Raises:
        TrainerError: it is damaged, or of another model.
    """
    state = _state(stage, optimizer, 0)
    try:
        load_state(state, checkpoint_id=path)
    except (CheckpointException, RuntimeError, ValueError, OSError) as error:
        reason = str(error).strip().splitlines()[-1]
        raise TrainerError(
            f"{path}: {reason}; it is damaged or of another model: remove it, or name another "
            "checkpoint.directory"
        ) from error
    set_model_state_dict(stage, state["model"], options=_OPTIONS)
    set_optimizer_state_dict(stage, optimizer, state["optimizer"], options=_OPTIONS)
    return int(state["next_step"])


def _state(stage: Stage, optimizer: torch.optim.Optimizer, next_step: int) -> dict[str, Any]:
    return {
        "model": get_model_state_dict(stage, options=_OPTIONS),
        "optimizer": get_optimizer_state_dict(stage, optimizer, options=_OPTIONS),
        "next_step": torch.tensor(next_step),
    }
