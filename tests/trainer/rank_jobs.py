"""What tests run on ranks; imported once, by the server that ranks are forked from."""

from __future__ import annotations

import contextlib
import errno
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pyarrow.parquet  # noqa: F401  (for the server)
import torch
import torch.distributed.checkpoint.state_dict
from torch.distributed.tensor import DTensor
from torch.nn import functional

from trainer import checkpoint, run_lock
from trainer.batches import Batch
from trainer.communication import open_mesh
from trainer.cross_entropy import cross_entropy_sum
from trainer.errors import TrainerError
from trainer.lineage import Resume
from trainer.prepare import prepare
from trainer.schedule import Wire, one_forward_one_backward
from trainer.settings import parse_settings
from trainer.train import Run, open_run

Arrays = dict[str, np.ndarray]
Taken = list[tuple[int, int, list[int]]]
"""Micro-batches that a rank computed, in its order: step, slot, token ids."""


def open_settings(tables: Mapping[str, Any], shards: str, world_size: int) -> Run:
    environment = {"WORLD_SIZE": str(world_size), "RANK": str(torch.distributed.get_rank())}
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
            record = run.step(step, run.source.batches(step, step + 1))
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


class Stopped(Exception):
    """A run that ends where it saved."""


def train_and_list(
    rank: int,
    tables: Mapping[str, Any],
    shards: str,
    world_size: int,
    stops: bool = False,
    steps_off: int = 0,
) -> tuple[list[dict[str, Any]], Taken]:
    """As `train_on`: records, and the micro-batches it took.

    It may end at its first checkpoint, or go on so many steps late.
    """
    records: list[dict[str, Any]] = []
    taken: Taken = []
    whole_step = Run.step

    def listed(run: Run, step: int, coming: Iterator[Batch]) -> dict[str, Any]:
        def listing() -> Iterator[Batch]:
            for batch in coming:
                taken.append((step, batch.slot, batch.tokens[: batch.num_tokens].tolist()))
                yield batch

        return whole_step(run, step, listing())

    def note(text: str) -> None:
        if stops and text.endswith(": saved"):
            raise Stopped

    run = open_settings(tables, shards, world_size)
    if run.resume and steps_off:
        resume = replace(run.resume, next_step=run.resume.next_step + steps_off)
        run = replace(run, resume=resume)
    with contextlib.suppress(Stopped), mock.patch.object(Run, "step", listed):
        run.steps(records.append, note)
    return records, taken


def stopped_and_whole(
    rank: int, stopped: Mapping[str, Any], whole: Mapping[str, Any], shards: str, world_size: int
) -> list[tuple[list[dict[str, Any]], Taken]]:
    """A run to its first checkpoint, then one without a break; the same ranks, to save time."""
    return [
        train_and_list(rank, stopped, shards, world_size, stops=True),
        train_and_list(rank, whole, shards, world_size),
    ]


def train_beside_another(rank: int, tables: Mapping[str, Any], shards: str) -> None:
    """Two runs that both found no checkpoint, one after the other, where nothing can be locked."""
    notes: list[str] = []
    no_locks = OSError(errno.ENOLCK, "No locks available")
    with mock.patch.object(run_lock.fcntl, "flock", side_effect=no_locks):
        runs = [open_settings(tables, shards, 1) for _ in range(2)]
    for run in runs:
        run.steps(lambda record: None, notes.append)
        assert "cannot be locked (No locks available): give it to one run at a time" in notes[0]


def go_on_apart(rank: int, tables: Mapping[str, Any], shards: str, world_size: int) -> str:
    """As if the last rank's machine had another directory; what the rank was told."""
    run = open_settings(tables, shards, world_size)
    if rank == world_size - 1:
        run = replace(run, resume=Resume(checkpoint=Path(shards), next_step=1, changes=()))
    try:
        run.steps(lambda record: None, lambda note: None)
    except TrainerError as error:
        return str(error)
    return ""


def load_without_a_peer(rank: int, tables: Mapping[str, Any], shards: str) -> None:
    """Load the newest checkpoint, as if another rank were gone."""
    run = open_settings(tables, shards, 1)
    assert run.resume is not None
    gone = RuntimeError("Connection closed by peer")
    with mock.patch.object(checkpoint, "load_state", side_effect=gone):
        checkpoint.load(run.resume.checkpoint, run.stage, run.optimizer)


def _refusal(tables: Mapping[str, Any], shards: str, world_size: int) -> str:
    """Why a run does not go on, "" if it does; the run, and its lock, end with this."""
    try:
        run = open_settings(tables, shards, world_size)
        assert run.resume is not None
        checkpoint.load(run.resume.checkpoint, run.stage, run.optimizer)
    except TrainerError as error:
        return str(error)
    return ""


def load_flipped(
    rank: int, tables: Mapping[str, Any], shards: str, world_size: int, flips: list[tuple[str, int]]
) -> list[str]:
    """Go on from a checkpoint with one bit flipped, (file, bit) each in turn: what was said."""
    said = []
    for name, bit in flips:
        path = Path(name)
        whole = path.read_bytes()
        torch.distributed.barrier()
        if rank == 0:
            data = bytearray(whole)
            data[bit // 8] ^= 1 << bit % 8
            path.write_bytes(data)
        torch.distributed.barrier()
        said.append(_refusal(tables, shards, world_size))
        torch.distributed.barrier()
        if rank == 0:
            path.write_bytes(whole)
    return said


def resumed_groups(rank: int, tables: Mapping[str, Any], shards: str) -> list[dict[str, Any]]:
    """The optimiser's settings after a checkpoint was loaded, and steps that its moments count."""
    run = open_settings(tables, shards, 1)
    assert run.resume is not None
    checkpoint.load(run.resume.checkpoint, run.stage, run.optimizer)
    counts = {int(state["step"]) for state in run.optimizer.state.values()}
    groups = [
        {k: v for k, v in group.items() if k != "params"} for group in run.optimizer.param_groups
    ]
    return [{**group, "counts": counts} for group in groups]


def stopped_early(rank: int, tables: Mapping[str, Any], shards: str) -> tuple[list[str], list[str]]:
    """Names of the threads after the first step, and after the run has failed there."""
    names: list[str] = []

    def fail(_record: dict[str, Any]) -> None:
        names.extend(thread.name for thread in threading.enumerate())
        raise InterruptedError

    with contextlib.suppress(InterruptedError):
        open_settings(tables, shards, 1).steps(fail, lambda _note: None)
    return names, [thread.name for thread in threading.enumerate()]


def piece_outputs(
    rank: int,
    tables: Mapping[str, Any],
    shards: str,
    world_size: int,
    slot: int,
    changed_piece: int,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """What the last norm gives for a slot of step 0, as it is and with other tokens in a piece.

    Returns:
        The piece of each local token, and twice (tokens, hidden).
    """
    run = open_settings(tables, shards, world_size)
    cp = {"cp_rank": run.mesh.rank("cp"), "cp_size": run.mesh.size("cp")}
    views = run.source.reader.micro_batches(0, dp_rank=0, dp_size=1, **cp)
    place, view = next((i, view) for i, view in enumerate(views) if view.slot == slot)
    batch = list(run.source.batches(0, 1))[place]
    cu_seqlens = run.source.reader.micro_batch(0, slot).cu_seqlens
    piece = np.searchsorted(cu_seqlens, view.query_index, side="right") - 1
    tokens = batch.tokens.clone()
    mine = np.flatnonzero(piece == changed_piece)
    tokens[mine] = (tokens[mine] * 7 + 3) % run.config.vocab_size
    outputs: list[np.ndarray] = []
    run.stage.norm.register_forward_hook(
        lambda _module, _arguments, output: outputs.append(output.detach().numpy())
    )
    for given in (batch, replace(batch, tokens=tokens)):
        run.stage(None, given)
    return piece, outputs[0][: len(piece)], outputs[1][: len(piece)]


def pipeline_grid(rank: int, num_stages: int, cases: Sequence[Sequence[int]]) -> list[float]:
    """1F1B of stages tanh(x w), for micro-batches of the given rows; losses weighted by place.

    Returns:
        For each case this stage's dloss/dw, then, the stages' weights being 0.5 + stage, what one
        process gives.
    """
    world_size = torch.distributed.get_world_size()
    mesh = open_mesh(
        dp=world_size // num_stages, cp=1, pp=num_stages, tp=1, device=torch.device("cpu")
    )
    mine = mesh.rank("pp")
    found = []
    for rows in cases:
        weights = [torch.tensor(0.5 + i, dtype=torch.float64, requires_grad=True)
                   for i in range(num_stages)]  # fmt: skip
        inputs = [torch.linspace(0.1, 1 + i, 3 * n, dtype=torch.float64).view(n, 3)
                  for i, n in enumerate(rows)]  # fmt: skip
        order: list[tuple[str, int]] = []

        def forward(number, x, inputs=inputs, order=order, weights=weights):
            order.append(("forward", number))
            y = torch.tanh((inputs[number] if x is None else x) * weights[mine])
            return (number + 1) * y.sum() if mesh.is_last_stage else y

        def backward(number, y, gradient, order=order):
            order.append(("backward", number))
            y.backward(gradient)

        wire = Wire(mesh=mesh, shapes=[(n, 3) for n in rows], dtype=torch.float64)
        one_forward_one_backward(forward, backward, wire)
        assert sorted(order) == sorted(
            (what, i) for what in ("forward", "backward") for i in range(len(rows))
        )
        held = np.cumsum([1 if what == "forward" else -1 for what, _ in order])
        assert held.max() <= min(num_stages - mine, len(rows))  # what 1F1B holds, no more
        alone = [weight.detach().clone().requires_grad_() for weight in weights]
        for number, x in enumerate(inputs):
            for weight in alone:
                x = torch.tanh(x * weight)
            ((number + 1) * x.sum()).backward()
        ours, theirs = weights[mine].grad, alone[mine].grad
        assert ours is not None
        assert theirs is not None
        found += [ours.item(), theirs.item()]
    return found


def shared_cross_entropy(rank: int, chunk: int) -> list[np.ndarray]:
    """Loss, gradient of hidden rows (summed over tp) and of this rank's weights; every id a label.

    Returns:
        These three, then the same from one process.
    """
    mesh = open_mesh(dp=1, cp=1, pp=1, tp=2, device=torch.device("cpu"))
    seed = torch.Generator().manual_seed(0)
    hidden, weight = (torch.randn(n, 5, generator=seed, dtype=torch.float64) for n in (13, 12))
    labels = torch.tensor([*range(12), -100])
    hidden.requires_grad_()
    share = weight[6 * rank : 6 * rank + 6].clone().requires_grad_()
    loss = cross_entropy_sum(hidden, share, labels, mesh=mesh, chunk=chunk)
    ours = [loss, *torch.autograd.grad(loss, (hidden, share))]
    torch.distributed.all_reduce(ours[1])
    weight.requires_grad_()
    whole = functional.cross_entropy(hidden @ weight.T, labels, reduction="sum")
    by_hidden, by_weight = torch.autograd.grad(whole, (hidden, weight))
    theirs = [whole, by_hidden, by_weight[6 * rank : 6 * rank + 6]]
    return [tensor.detach().numpy() for tensor in (*ours, *theirs)]
