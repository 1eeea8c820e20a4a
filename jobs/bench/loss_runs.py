"""One run of `jobs.bench.loss_curves`: the trainer's own step in one process, on a CPU.

The model is small, and so is its vocabulary: the frequent ids of the corpus and one for the others.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from jobs.bench.loss_sets import Extent, Packed
from pipeline.shard.reader import open_shards
from pipeline.shard.schema import NO_LABEL
from trainer.attention import attention_backend
from trainer.batches import Batch, BatchSource
from trainer.model_config import ModelConfig
from trainer.prepare import Prepared
from trainer.settings import parse_settings
from trainer.shape import LayerShape
from trainer.train import Run, open_run

MODEL = ModelConfig(
    layer=LayerShape(hidden=48, heads=2, kv_heads=1, head_dim=24, intermediate=144),
    num_layers=2,
    vocab_size=1024,
)
OPTIMIZER = {"lr": 0.005, "min_lr": 0.0005, "warmup_steps": 20}
Task = tuple[Path, int, Extent, np.ndarray, Sequence[Packed]]
"""A set, a seed, what is trained, the small id of each id, held-out pieces."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SmallVocabulary(BatchSource):
    """Batches whose ids are those of the small vocabulary.

    Args:
        small: int64, (vocabulary,): the small id of each id.
    """

    small: Tensor

    def batches(self, first_step: int, stop_step: int) -> Generator[Batch, None, None]:
        for batch in BatchSource.batches(self, first_step, stop_step):
            tokens, labels = self.small[batch.tokens], _small(self.small, batch.labels)
            yield replace(batch, tokens=tokens, labels=labels)


def train(task: Task) -> dict[str, Any]:
    """Train on a set's first steps; losses a step, and held-out ones now and then.

    Returns:
        `loss`, one a step; `held_out`, pairs of steps done and loss, before the first step and
        after every `evaluate_every`; tokens trained and seconds taken.
    """
    root, seed, extent, ids, pieces = task
    torch.set_num_threads(1)
    small, started = torch.from_numpy(ids), time.perf_counter()
    with _alone():
        run = _open(root, seed, extent.steps, small)
        coming = run.source.batches(0, extent.steps)
        (some, *_) = run.source.batches(0, 1)
        batches = [_batch(some, packed, small) for packed in pieces]
        held_out = [(0, _evaluate(run, batches))]
        losses: list[float] = []
        tokens = 0
        for step in range(extent.steps):
            record = run.step(step, coming)
            losses.append(round(record["loss"], 5))
            tokens += record["tokens"]
            if (step + 1) % extent.evaluate_every == 0 or step + 1 == extent.steps:
                held_out.append((step + 1, _evaluate(run, batches)))
    return {
        "tokens": tokens,
        "loss": losses,
        "held_out": held_out,
        "seconds": round(time.perf_counter() - started, 1),
    }


def _open(root: Path, seed: int, steps: int, small: Tensor) -> Run:
    device = torch.device("cpu")
    settings = parse_settings(
        {
            "model": {"config": "", "seed": seed},
            "optimizer": OPTIMIZER,
            "run": {"steps": steps, "prefetch": 0},
        }
    )
    run = open_run(
        Prepared(
            settings=settings,
            config=MODEL,
            reader=open_shards(root),
            device=device,
            precision=torch.float32,
            lock=None,
            attend=attention_backend("reference", device=device, dtype=torch.float32),
            num_steps=steps,
            resume=None,
        )
    )
    source = run.source
    fields = {name: getattr(source, name) for name in BatchSource.__dataclass_fields__}
    return replace(run, source=SmallVocabulary(**fields, small=small))


def _evaluate(run: Run, batches: Sequence[Batch]) -> float:
    """Mean loss of a target."""
    targets = sum(int((batch.labels != NO_LABEL).sum()) for batch in batches)
    with torch.no_grad():
        total = sum(float(run.stage(None, batch)) for batch in batches)
    return round(total / targets, 5)


def _batch(some: Batch, packed: Packed, small: Tensor) -> Batch:
    """Pieces as a batch; what context parallelism needs is as in any batch of degree 1."""
    borders = torch.from_numpy(np.cumsum([0, *packed.lengths])).to(torch.int32)
    longest = int(packed.lengths.max())
    positions = np.concatenate([np.arange(length) for length in packed.lengths])
    return replace(
        some,
        num_tokens=len(packed.tokens),
        tokens=small[torch.from_numpy(packed.tokens)],
        labels=_small(small, torch.from_numpy(packed.labels)),
        position_ids=torch.from_numpy(positions),
        cu_seqlens_q=borders,
        cu_seqlens_k=borders,
        max_seqlen_q=longest,
        max_seqlen_k=longest,
    )


def _small(small: Tensor, labels: Tensor) -> Tensor:
    return torch.where(labels == NO_LABEL, labels, small[labels.clamp(min=0)])


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """A process group of this process alone."""
    store = dist.HashStore()  # pyright: ignore[reportPrivateImportUsage]
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()
