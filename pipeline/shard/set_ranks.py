"""Which ranks a set allows, and which micro-batches are theirs."""

from __future__ import annotations

import shlex

from packer.orders import slots_of_rank
from pipeline.shard.manifest import Manifest
from pipeline.shard.tables import NotInSet


def slots_of(manifest: Manifest, step: int, *, dp_rank: int, dp_size: int) -> list[int]:
    """The slots of a data-parallel rank in a step, in the order in which it runs them.

    Raises:
        NotInSet: no such step or rank, or a size that does not divide the micro-batches.
    """
    slots = manifest.segment_of(step).num_micro_batches
    if dp_size < 1 or slots % dp_size:
        allowed = [size for size in range(1, slots + 1) if slots % size == 0]
        raise NotInSet(
            f"dp_size {dp_size} does not divide the {slots} micro-batches of step {step}; "
            f"use one of {allowed}, or plan with another num_micro_batches"
        )
    return slots_of_rank(
        manifest.micro_batch_order, dp_rank=dp_rank, dp_size=dp_size, num=slots // dp_size
    )


def check_cp(manifest: Manifest, cp_rank: int, cp_size: int) -> None:
    """That a context-parallel rank exists.

    Raises:
        NotInSet: it does not, or the degree has no plan; says how to make one.
    """
    if cp_size != 1 and cp_size not in manifest.cp_sizes:
        raise NotInSet(
            f"no CP plan of degree {cp_size} in {manifest.directory}, only of "
            f"{[1, *manifest.cp_sizes]}; make one with: {replan_command(manifest, cp_size)}"
        )
    if not 0 <= cp_rank < cp_size:
        raise NotInSet(f"cp_rank {cp_rank} is not in 0..{cp_size - 1}")


def replan_command(manifest: Manifest, cp_size: int) -> str:
    """The command that plans a degree."""
    return f"steelyard replan {shlex.quote(str(manifest.directory))} --cp-size {cp_size}"
