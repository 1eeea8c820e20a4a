"""Which run a checkpoint is of, and which runs may go on from it.

Two things have to be the same: the steps that were trained on, and the model. Everything else may
change, such as the mesh. Settings that shape the run hold as they are given, from the first step on
that is run with them; a run that goes on names those that differ.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from pipeline.shard.rank_reader import Reader
from trainer import checkpoint_digests
from trainer.errors import TrainerError
from trainer.model_config import ModelConfig
from trainer.settings import Settings

FILE = "run.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Lineage:
    """What a checkpoint says of the run that wrote it."""

    next_step: int
    shards: str
    """The set's directory."""
    steps_sha256: str
    """`Reader.steps_digest` of `next_step`."""
    model: dict[str, Any]
    """What the model computes."""
    settings: dict[str, Any]
    """What shaped the run so far, by the settings' names."""
    digests: str = ""
    """The file with the digests of all files, "" in a checkpoint of a version that wrote none."""

    def write(self, checkpoint: Path) -> None:
        text = json.dumps(asdict(self), indent=1)
        (checkpoint / FILE).write_text(text + "\n", encoding="utf-8")


@dataclass(frozen=True, slots=True, kw_only=True)
class Resume:
    """Where a run goes on."""

    checkpoint: Path
    next_step: int
    changes: tuple[str, ...]
    """Settings that differ from those so far, and what could not be checked, a line each."""


def lineage_of(
    reader: Reader,
    config: ModelConfig,
    settings: Settings,
    *,
    next_step: int,
    num_steps: int,
    precision: torch.dtype,
) -> Lineage:
    """Of a run that has done the steps below `next_step`, of `num_steps` that it runs in all.

    Raises:
        FormatError: the set's table of files is damaged.
    """
    model = asdict(config)
    del model["initializer_range"]  # of the first weights alone
    layer = model.pop("layer")
    optimizer = {f"optimizer.{name}": value for name, value in asdict(settings.optimizer).items()}
    run = {"run.steps": num_steps, "run.precision": str(precision).removeprefix("torch.")}
    return Lineage(
        next_step=next_step,
        shards=str(reader.manifest.directory),
        steps_sha256=reader.steps_digest(next_step),
        model=layer | model,
        settings=optimizer | run,
        digests=checkpoint_digests.FILE,
    )


def newest(directory: Path) -> Path | None:
    """The checkpoint of the highest step in a directory, if there is one."""
    found = (path for path in directory.glob("step-*") if path.name[5:].isdecimal())
    return max(found, key=lambda path: int(path.name[5:]), default=None)


def resume_from(
    checkpoint: Path,
    reader: Reader,
    config: ModelConfig,
    settings: Settings,
    *,
    num_steps: int,
    precision: torch.dtype,
) -> Resume:
    """Check a run against a checkpoint from which it is to go on.

    Raises:
        TrainerError: it is of other steps or of another model, or says neither; or its `run.json`
            or its digests are damaged.
        FormatError: the set's table of files is damaged.
    """
    had = _read(checkpoint)
    elsewhere = "or name another checkpoint.directory for a run of its own"
    if had.next_step > reader.num_steps:
        raise TrainerError(
            f"{checkpoint}: has trained on {had.next_step} steps of {had.shards}, "
            f"{reader.manifest.directory} has {reader.num_steps}; give that set, {elsewhere}"
        )
    now = lineage_of(
        reader,
        config,
        settings,
        next_step=had.next_step,
        num_steps=num_steps,
        precision=precision,
    )
    if had.steps_sha256 != now.steps_sha256:
        raise TrainerError(
            f"{checkpoint}: has trained on {had.next_step} steps of {had.shards} with SHA-256 "
            f"{had.steps_sha256}, those of {now.shards} have {now.steps_sha256}; give the set that "
            f"it was trained on, {elsewhere}"
        )
    for name, value in now.model.items():
        if had.model.get(name) != value:
            raise TrainerError(
                f"{checkpoint}: its model has {name} {had.model.get(name)}, "
                f"{settings.model.config} has {value}; give the model as it was trained, "
                f"{elsewhere}"
            )
    changes = tuple(
        f"{name} was {had.settings.get(name)} before step {had.next_step}, is {value} from there on"
        for name, value in now.settings.items()
        if had.settings.get(name) != value
    )
    if not had.digests:
        unchecked = "has no digests, an older steelyard wrote it: damage in it goes unnoticed"
        changes = (f"{checkpoint}: {unchecked}", *changes)
    return Resume(checkpoint=checkpoint, next_step=had.next_step, changes=changes)


def _read(checkpoint: Path) -> Lineage:
    try:
        found = Lineage(**json.loads((checkpoint / FILE).read_bytes()))
        if found.next_step < 0 or not (found.model and found.settings):
            raise ValueError
    except (OSError, TypeError, ValueError) as error:
        raise TrainerError(
            f"{checkpoint}: its {FILE} is missing or damaged, so it is not known what it was "
            "trained on: remove it, or name another checkpoint.directory"
        ) from error
    if found.digests:
        listed = checkpoint_digests.read_digests(checkpoint)
        if wrong := checkpoint_digests.check_files(checkpoint, listed, [FILE]):
            raise TrainerError(wrong)
    return found
