"""Everything that can be refused before ranks talk to one another."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from pipeline.shard.rank_reader import Reader
from pipeline.shard.reader import open_plan, open_shards
from trainer.attention import attention_backend
from trainer.attention_kernels import VarlenAttention
from trainer.errors import TrainerError
from trainer.lineage import Resume, newest, resume_from
from trainer.model_config import ModelConfig, read_model_config
from trainer.run_lock import RunLock, hold
from trainer.settings import Settings
from trainer.timing import open_device


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """What a run needs, checked against one another; every rank comes to the same."""

    settings: Settings
    config: ModelConfig
    reader: Reader
    device: torch.device
    precision: torch.dtype
    attend: VarlenAttention
    num_steps: int
    resume: Resume | None
    """None where no checkpoint is there yet."""
    lock: RunLock | None
    """On rank 0, where checkpoints are written."""


def prepare(settings: Settings, shards: str | Path, environment: Mapping[str, str]) -> Prepared:
    """Check the settings against the set, the model, the machine and the number of processes.

    Args:
        settings: of the run.
        shards: the set's directory.
        environment: `RANK`, `WORLD_SIZE` and `LOCAL_RANK`, as torchrun sets them; without them one
            process.

    Raises:
        TrainerError: settings that do not fit the model, the set or the processes, a checkpoint
            that is of another set or model, or a place where none can be written or, told to
            rank 0 alone, another run writes them.
        NotInSet: the set has no plan for this cp_size, or dp_size does not divide its steps.
        FormatError: the set is missing or damaged.
    """
    mesh, run = settings.mesh, settings.run
    world_size = int(environment.get("WORLD_SIZE", "1"))
    if world_size != mesh.world_size:
        raise TrainerError(
            f"dp {mesh.dp_size} x cp {mesh.cp_size} x pp {mesh.pp_size} x tp {mesh.tp_size} are "
            f"{mesh.world_size} ranks, but there are {world_size} processes; start it with: "
            f"torchrun --nproc-per-node {mesh.world_size} -m trainer ... (on one machine)"
        )
    config = read_model_config(Path(settings.model.config))
    _check_model(config, settings)
    open_set = open_shards if run.tokens_from == "shards" else open_plan
    reader = open_set(shards)
    num_steps = _check_set(reader, config, settings)
    name = run.device
    if name in ("auto", "cuda") and torch.cuda.is_available():
        name = f"cuda:{environment.get('LOCAL_RANK', '0')}"
    device = open_device(name)
    precision = run.precision
    if precision == "auto":
        precision = "bfloat16" if device.type == "cuda" else "float32"
    dtype = getattr(torch, precision)
    resume, lock, root = None, None, settings.checkpoint.directory
    if root:
        _check_writable(Path(root))
        lock = hold(Path(root)) if environment.get("RANK", "0") == "0" else None
    if root and (path := newest(Path(root))):
        resume = resume_from(path, reader, config, settings, num_steps=num_steps, precision=dtype)
    return Prepared(
        settings=settings,
        config=config,
        reader=reader,
        device=device,
        precision=dtype,
        attend=attention_backend(
            run.attention, device=device, dtype=dtype, head_dim=config.layer.head_dim
        ),
        num_steps=num_steps,
        resume=resume,
        lock=lock,
    )


def _check_writable(directory: Path) -> None:
    """Before any step is computed, since the first checkpoint may be hours away."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory):
            pass
    except (OSError, ValueError) as error:
        raise TrainerError(
            f"{directory}: checkpoints cannot be written here: {error}; name another "
            "checkpoint.directory"
        ) from error


def _check_model(config: ModelConfig, settings: Settings) -> None:
    tp, pp = settings.mesh.tp_size, settings.mesh.pp_size
    if tp > config.layer.kv_heads:
        raise TrainerError(
            f"tp_size is {tp}, the model has {config.layer.kv_heads} key-value heads, which are "
            "not copied; lower mesh.tp_size and raise cp_size or dp_size"
        )
    config.layer.share(tp)
    if config.vocab_size % tp:
        raise TrainerError(
            f"tp_size {tp} does not divide the model's vocab_size {config.vocab_size}; raise "
            f"vocab_size to {-(-config.vocab_size // tp) * tp}"
        )
    if pp > config.num_layers:
        raise TrainerError(
            f"pp_size is {pp}, the model has {config.num_layers} layers; each stage needs one"
        )


def _check_set(reader: Reader, config: ModelConfig, settings: Settings) -> int:
    """The number of steps to run."""
    manifest, mesh = reader.manifest, settings.mesh
    vocabulary = manifest.tokenizer.get("vocab_size", 0)
    if vocabulary > config.vocab_size:
        raise TrainerError(
            f"the set's tokenizer has ids below {vocabulary}, the model's vocab_size is "
            f"{config.vocab_size}; raise it in {settings.model.config}"
        )
    num_steps = settings.run.steps or manifest.num_steps
    if num_steps > manifest.num_steps:
        raise TrainerError(
            f"run.steps is {num_steps}, the set has {manifest.num_steps}; lower it, or extend the "
            "set"
        )
    for segment in manifest.segments:
        if segment.first_step < num_steps:
            reader.micro_batches(
                segment.first_step, dp_rank=0, dp_size=mesh.dp_size, cp_size=mesh.cp_size
            )
    return num_steps
