"""The state of a run: model, optimiser, and beside them its lineage, with the step that comes next.

Every rank writes its shards and names are the whole model's, so any mesh can read what another one
wrote. Where a run stands in the data is the step alone, whatever dp is. Files have digests, and are
read as they were written or not at all.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
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

from trainer import checkpoint_digests
from trainer.checkpoint_digests import FileDigest, digest_of
from trainer.errors import TrainerError
from trainer.lineage import Lineage
from trainer.model import Stage
from trainer.safe_loading import SafePlanner, SafeReader

_OPTIONS = StateDictOptions(flatten_optimizer_state_dict=True, strict=False)


def save(root: Path, stage: Stage, optimizer: torch.optim.Optimizer, lineage: Lineage) -> Path:
    """Write `root/step-N`; a collective call. It appears under that name when it is whole.

    Raises:
        TrainerError: it cannot be written; on every rank, or on rank 0 alone.
    """
    path = root / f"step-{lineage.next_step:08d}"
    scratch = path.with_suffix(".partial")
    advice = "make room there, or name another checkpoint.directory"
    with _told(f"{scratch}: cannot be written", advice):
        if dist.get_rank() == 0 and scratch.exists():
            shutil.rmtree(scratch)  # of a run that was killed, perhaps on more ranks
        dist.barrier()
        save_state(_state(stage, optimizer), checkpoint_id=scratch)
        digests = _gather_digests(scratch)
        if dist.get_rank() == 0:
            lineage.write(scratch)
            others = [file for file in scratch.iterdir() if file.name not in digests]
            digests |= {file.name: digest_of(file) for file in others}
            checkpoint_digests.write_digests(scratch, digests)
            if path.exists():  # a run goes on from the newest, so this one was not there
                raise TrainerError(
                    f"{path}: is there already: another run writes to this directory; name another "
                    "checkpoint.directory for one of them"
                )
            scratch.rename(path)
        dist.barrier()
    return path


def load(path: Path, stage: Stage, optimizer: torch.optim.Optimizer) -> None:
    """Read a checkpoint into the stage and its optimiser; a collective call.

    The optimiser's moments come from it, its settings stay what they are.

    Where it has digests, each file is read through once more before, by one rank.

    Raises:
        TrainerError: it is damaged or cannot be read; on every rank.
    """
    _check_digests(path)
    state = _state(stage, optimizer)
    chosen = [
        {name: value for name, value in group.items() if name != "params"}
        for group in optimizer.param_groups
    ]
    advice = "if it is damaged, remove it, or name another checkpoint.directory"
    with _told(f"{path}: cannot be read", advice):
        load_state(state, storage_reader=SafeReader(path), planner=SafePlanner())
    set_model_state_dict(stage, state["model"], options=_OPTIONS)
    set_optimizer_state_dict(stage, optimizer, state["optimizer"], options=_OPTIONS)
    for group, settings in zip(optimizer.param_groups, chosen, strict=True):
        group.update(settings)


def check_all_go_on_at(step: int, directory: str) -> None:
    """That ranks, each of which looked for itself, found the same checkpoint; a collective call.

    Raises:
        TrainerError: some found another; on every rank.
    """
    found = [step] * dist.get_world_size()
    dist.all_gather_object(found, step)
    for rank, other in enumerate(found):
        if other != found[0]:
            raise TrainerError(
                f"{directory}: rank 0 would go on at step {found[0]}, rank {rank} at step {other}; "
                "give a checkpoint.directory that all machines share, and run again"
            )


def remove_unfinished(root: Path) -> list[Path]:
    """Remove what runs left that were killed while they saved; for who holds the directory alone.

    Raises:
        TrainerError: one cannot be removed.
    """
    left = sorted(path for path in root.glob("step-*.partial") if path.is_dir())
    for path in left:
        with _told(f"{path}: cannot be removed", "remove it, or name another checkpoint.directory"):
            shutil.rmtree(path)
    return left


def _gather_digests(scratch: Path) -> dict[str, FileDigest]:
    """Of the files that ranks wrote, on rank 0; each reads its own, still in memory."""
    mine = {file.name: digest_of(file) for file in scratch.glob(f"__{dist.get_rank()}_*")}
    gathered: list[Any] | None = [None] * dist.get_world_size() if dist.get_rank() == 0 else None
    dist.gather_object(mine, gathered)
    return {name: digest for files in gathered or () for name, digest in files.items()}


def _check_digests(path: Path) -> None:
    """Each rank reads every so many-th file, so that none is read twice and all find the same.

    Raises:
        TrainerError: a file is not as recorded.
    """
    if not (path / checkpoint_digests.FILE).exists():
        return  # of an older version; `resume_from` knows which has to have them
    listed = checkpoint_digests.read_digests(path)
    mine = sorted(listed)[dist.get_rank() :: dist.get_world_size()]
    found: list[str | None] = [None] * dist.get_world_size()
    dist.all_gather_object(found, checkpoint_digests.check_files(path, listed, mine))
    for wrong in filter(None, found):
        raise TrainerError(wrong)


@contextmanager
def _told(what: str, advice: str) -> Iterator[None]:
    """Turns what torch and the system say of files into a TrainerError.

    What a rank meets is gathered by torch and raised on all. A RuntimeError is none of the files':
    another rank has left.
    """
    logger = logging.getLogger()  # torch's here; a table of contents that is missing is a traceback
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    except CheckpointException as error:
        reason = next(cause for cause, _ in error.failures.values())
        raise TrainerError(f"{what}: {_first_sentence(reason)}; {advice}") from error
    except OSError as error:
        raise TrainerError(f"{what}: {_first_sentence(error)}; {advice}") from error
    finally:
        logger.setLevel(level)


def _first_sentence(error: BaseException) -> str:
    """What went wrong; torch goes on with what a programmer may do, such as to trust the file."""
    lines = str(error).splitlines() or [type(error).__name__]
    return lines[0].partition(". ")[0]


def _state(stage: Stage, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    return {
        "model": get_model_state_dict(stage, options=_OPTIONS),
        "optimizer": get_optimizer_state_dict(stage, optimizer, options=_OPTIONS),
    }
