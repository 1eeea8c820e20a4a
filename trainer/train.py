"""The training run: `Run.step` is the step, the rest opens and closes it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trainer import checkpoint
from trainer.batches import Batch, BatchSource
from trainer.build import build_optimizer, build_stage, last_backward
from trainer.communication import Mesh, open_mesh
from trainer.lineage import Resume, lineage_of
from trainer.model import Stage
from trainer.model_config import ModelConfig
from trainer.optimization import clip, learning_rate, local_gradients, sum_of_squares
from trainer.prepare import Prepared
from trainer.run_lock import RunLock
from trainer.schedule import Wire, one_forward_one_backward
from trainer.settings import Settings
from trainer.times import compare, gather_times, rows_of

Record = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One rank of a run."""

    settings: Settings
    config: ModelConfig
    mesh: Mesh
    source: BatchSource
    stage: Stage
    optimizer: torch.optim.AdamW
    precision: torch.dtype
    num_steps: int
    resume: Resume | None
    lock: RunLock | None

    def step(self, step: int, coming: Iterator[Batch]) -> Record:
        """One step of the set: the next micro-batches, one update of the parameters."""
        mesh, stage, started = self.mesh, self.stage, time.perf_counter()
        wire, targets = self.wire(step), self.source.reader.global_targets(step)
        batches: list[Batch] = []
        losses: list[Tensor] = []

        def forward(number: int, x: Tensor | None) -> Tensor:
            batches.append(next(coming))
            with mesh.stopwatch.measure("run", number):
                return stage(x, batches[number])

        def backward(number: int, y: Tensor, gradient: Tensor | None) -> None:
            last_backward(stage, number == len(wire.shapes) - 1)
            if gradient is None:  # the last stage: y is the sum of the micro-batch's losses
                y = y / max(targets, 1)  # a step whose documents have one token has none
                losses.append(y.detach())
            with mesh.stopwatch.measure("run", number):
                y.backward(gradient)

        self.optimizer.zero_grad()
        one_forward_one_backward(forward, backward, wire)

        gradients = local_gradients(stage, mesh.size("tp"))
        copies = mesh.size("tp")  # of a loss; a token is on every stage as well
        loss, squares, tokens, pairs = mesh.sum_over_world(
            sum(losses) / copies,
            sum_of_squares(gradients),
            sum(batch.num_tokens for batch in batches) / (copies * mesh.size("pp")),
            sum(batch.pairs for batch in batches) / (copies * mesh.size("pp")),
        )
        grad_norm, lr = math.sqrt(squares), self.learning_rate(step)
        clip(gradients, grad_norm, self.settings.optimizer.max_grad_norm)
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        self.optimizer.step()

        table = gather_times(mesh, batches)  # waits for the device
        record: Record = {"step": step, "loss": loss, "grad_norm": grad_norm, "lr": lr}
        record |= self.speed(round(tokens), round(pairs), time.perf_counter() - started)
        record |= {"targets": targets, "times": compare(table)}
        return record | ({"micro_batches": rows_of(table)} if self.settings.run.times else {})

    def learning_rate(self, step: int) -> float:
        """Of a step."""
        return learning_rate(step, self.num_steps, self.settings.optimizer)

    def speed(self, tokens: int, pairs: int, seconds: float) -> Record:
        """Tokens a second, and the share of the GPUs' peak that the model's FLOPs are."""
        peak = 1e12 * self.settings.run.peak_tflops * self.settings.mesh.world_size
        flops = self.config.flops(tokens, pairs) / seconds
        return {
            "tokens": tokens,
            "seconds": round(seconds, 4),
            "tokens_per_s": round(tokens / seconds, 1),
            "mfu": round(flops / peak, 4) if peak else None,
        }

    def wire(self, step: int) -> Wire:
        """Shapes of the step's activations, from the plan."""
        tp, hidden = self.mesh.size("tp"), self.config.layer.hidden
        shapes = [(rows // tp, hidden) for rows in self.source.rows(step)]
        return Wire(mesh=self.mesh, shapes=shapes, dtype=self.precision)

    def steps(self, report: Callable[[Record], None], note: Callable[[str], None]) -> None:
        """Every step from where the newest checkpoint left off; `report` gets each one's figures.

        Raises:
            TrainerError: a checkpoint cannot be read or written, or ranks found different ones.
            FormatError: damaged bytes in the set.
        """
        settings = self.settings.checkpoint
        root = Path(settings.directory) if settings.directory else None
        first = self.begin(note)
        if self.lock and self.lock.warning:
            note(self.lock.warning)
        elif self.lock and root:
            for left in checkpoint.remove_unfinished(root):
                note(f"{left}: a run ended while it wrote this; removed")
        with closing(self.source.batches(first, self.num_steps)) as coming:
            for step in range(first, self.num_steps):
                report(self.step(step, coming))
                due = settings.every_steps and (step + 1) % settings.every_steps == 0
                if root and (due or step + 1 == self.num_steps):
                    note(f"{self.save(root, step + 1)}: saved")

    def begin(self, note: Callable[[str], None]) -> int:
        """Load the newest checkpoint, if there is one; the first step to run. A collective call.

        Raises:
            TrainerError: it cannot be read, or ranks found different ones.
        """
        first = self.resume.next_step if self.resume else 0
        checkpoint.check_all_go_on_at(first, self.settings.checkpoint.directory)
        if self.resume:
            checkpoint.load(self.resume.checkpoint, self.stage, self.optimizer)
            left = f"goes on at step {first}" if first < self.num_steps else "all are done"
            note(f"{self.resume.checkpoint}: {left} of {self.num_steps}")
            for change in self.resume.changes:
                note(change)
        return first

    def save(self, root: Path, next_step: int) -> Path:
        """Write a checkpoint; a collective call.

        Raises:
            TrainerError: it cannot be written.
        """
        lineage = lineage_of(
            self.source.reader,
            self.config,
            self.settings,
            next_step=next_step,
            num_steps=self.num_steps,
            precision=self.precision,
        )
        return checkpoint.save(root, self.stage, self.optimizer, lineage)


def open_run(prepared: Prepared) -> Run:
    """This rank's part of a run whose settings and set have been checked; a collective call."""
    settings, config = prepared.settings, prepared.config
    sizes, device, precision = settings.mesh, prepared.device, prepared.precision
    mesh = open_mesh(
        dp=sizes.dp_size, cp=sizes.cp_size, pp=sizes.pp_size, tp=sizes.tp_size, device=device
    )
    stage = build_stage(
        config,
        mesh,
        prepared.attend,
        precision=precision,
        seed=settings.model.seed,
        recompute=settings.run.recompute,
        loss_rows=settings.run.loss_rows,
    )
    source = BatchSource(
        reader=prepared.reader,
        dp_rank=mesh.rank("dp"),
        dp_size=sizes.dp_size,
        cp_rank=mesh.rank("cp"),
        cp_size=sizes.cp_size,
        tp_size=sizes.tp_size,
        device=device,
        prefetch=settings.run.prefetch,
    )
    return Run(
        settings=settings,
        config=config,
        mesh=mesh,
        source=source,
        stage=stage,
        optimizer=build_optimizer(stage, settings.optimizer),
        precision=precision,
        num_steps=prepared.num_steps,
        resume=prepared.resume,
        lock=prepared.lock,
    )
