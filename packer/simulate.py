"""Policies side by side on a list of document lengths; nothing is written."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np

from packer.measures import BalanceMeter
from packer.orders import AUTO
from packer.packing.binding import BindingMeter
from packer.packing.config import PackingConfig
from packer.packing.packer import PackingError
from packer.packing.search.objective import outside_bands
from packer.packing.whole import Packing, pack
from packer.plan import Pieces
from packer.schedule import ONE_RANK, Schedule
from packer.tuning import tune_thresholds
from packer.workload import Workload

QUEUED_POLICIES = ("wlb", "wlb_printed", "lookahead")
"""Policies that have outlier thresholds, or a rival that has."""
WINDOW_POLICIES = ("fixed_greedy", "fixed_solver", "ffd", "bfd")
"""Policies that deal out several global batches together."""
FILLING_POLICIES = ("ffd", "bfd")
"""Policies that fill micro-batches up to S_max, so that a step takes in N x S_max tokens."""


def simulate(
    lengths: np.ndarray,
    policies: Sequence[str],
    config: PackingConfig,
    *,
    workload: Workload,
    schedule: Schedule = ONE_RANK,
    micro_batch_order: str = AUTO,
    max_queues: int = 3,
    global_batches: Sequence[int] = (1,),
    steps: int | None = None,
    look: Callable[[dict[str, Any], Packing], None] = lambda _row, _packing: None,
) -> list[dict[str, Any]]:
    """Pack the same documents with every policy and measure what comes out.

    Args:
        lengths: tokens of each document, integers, (documents,); longer ones are cut to S first.
        policies: of `packer.packing.packer.SIMULATED`.
        config: what they pack under. Without thresholds, those of `wlb`, `wlb_printed` and the
            rival of `lookahead` are tuned.
        workload: what a piece costs.
        schedule: of the predicted times; what `lookahead` makes small is `config`'s.
        micro_batch_order: rule by which ranks run their micro-batches; "auto" for each policy's
            best.
        max_queues: most queues to tune.
        global_batches: steps that `WINDOW_POLICIES` deal out together, a row for each; their bound
            on displacement is at least four times as many steps.
        steps: use only as many documents as about so many steps need; None for all.
        look: called with each row and the packing that it is of.

    Returns:
        A dict a policy: the fields of `packer.measures.Balance`, and `policy`, `thresholds`,
        `global_batches` (None where the policy has no use for them), `intake_tokens`,
        `tail_tokens`, `tail_pieces`, `seconds` and `documents_per_s` (CPU time of packing, neither
        compiling nor tuning in it), `tuning_seconds`, `violations`: how often a bound is broken,
        by bound, which no policy does that writes plans; `solver`: how `fixed_solver` fared
        (`windows`, `at_limit`, `gap_mean`, `gap_max`, `seconds`), None for the others; `made_by`,
        the policy that made the plan, another one where `lookahead` found none better; `binding`
        and `binding_shares`, which bounds are in the way (`packer.packing.binding`);
        `outside_bands`, tokens by which steps of `lookahead` leave its bands.

    Raises:
        PackingError: unknown policy, or no plan within the bounds.
        ValueError: bounds or lengths that make no sense, documents for less than one step.
    """
    pieces = cut_lengths(lengths, config.context_length)
    if steps is not None:
        end = np.searchsorted(pieces.position, steps * config.intake_tokens)
        pieces = pieces.take(slice(0, int(end)))
    for policy in policies:
        compile_kernels(policy, config, workload)
    tuning_s = 0.0
    tuned = config
    if not config.thresholds and any(policy in QUEUED_POLICIES for policy in policies):
        started = time.process_time()
        tuning = tune_thresholds(
            pieces,
            config,
            workload,
            mean_displacement=config.mean_displacement,
            max_queues=max_queues,
        )
        tuning_s = time.process_time() - started
        tuned = replace(config, thresholds=tuning.thresholds)
    rows = []
    for policy, batches in _rows_of(policies, global_batches):
        queued = policy in QUEUED_POLICIES
        bounds = tuned if queued else _bounds(policy, batches, config)
        packing, seconds = _timed(policy, pieces, bounds, workload)
        row = _row(policy, packing, workload, schedule, micro_batch_order)
        row["global_batches"] = batches
        row["seconds"] = seconds
        row["documents_per_s"] = (int(pieces.doc_id[-1]) + 1) / max(seconds, 1e-9)
        row["tuning_seconds"] = tuning_s if queued else 0.0
        look(row, packing)
        rows.append(row)
    return rows


def _rows_of(
    policies: Sequence[str], global_batches: Sequence[int]
) -> list[tuple[str, int | None]]:
    """Policies, those that deal out windows once for every size of these."""
    return [
        (policy, batches)
        for policy in policies
        for batches in (global_batches if policy in WINDOW_POLICIES else (None,))
    ]


def _bounds(policy: str, batches: int | None, config: PackingConfig) -> PackingConfig:
    """What a policy without thresholds packs under."""
    if batches is not None:
        bound = max(config.max_displacement, 4 * batches)
        config = replace(config, global_batches=batches, max_displacement=bound)
    if policy in FILLING_POLICIES:
        return replace(config, intake_tokens=config.num_micro_batches * config.max_tokens)
    return config


def cut_lengths(lengths: np.ndarray, context_length: int) -> Pieces:
    """Documents as pieces of one source, each cut into S, S, ..., rest.

    Raises:
        ValueError: no documents, or one without tokens.
    """
    tokens = np.ascontiguousarray(lengths, dtype=np.int64)
    if not len(tokens) or int(tokens.min()) < 1:
        raise ValueError("lengths must be of at least one document, each of at least one token")
    parts = -(-tokens // context_length)
    document = np.repeat(np.arange(len(tokens)), parts)
    number = np.arange(len(document)) - np.repeat(np.cumsum(parts) - parts, parts)
    zeros = np.zeros_like(document)
    start = number * context_length
    return Pieces(
        source=zeros,
        epoch=zeros,
        doc_id=document,
        doc_start=start,
        doc_stop=np.minimum(start + context_length, tokens[document]),
        doc_tokens=tokens[document],
        position=(np.cumsum(tokens) - tokens)[document] + start,
    )


def compile_kernels(policy: str, config: PackingConfig, workload: Workload) -> None:
    """Load the policy's kernels, so that their compiling is not measured."""
    uneven = np.ones(config.num_micro_batches, np.int64)
    uneven[0] = config.context_length
    bounds = replace(config, intake_tokens=int(uneven.sum()))
    with suppress(PackingError):  # wlb_printed holds a long piece back, and is compiled by then
        pack(policy, Pieces.from_lengths(uneven), bounds, workload)


def _timed(
    policy: str, pieces: Pieces, config: PackingConfig, workload: Workload
) -> tuple[Packing, float]:
    """Pack, and the CPU seconds that takes."""
    started = time.process_time()
    packing = pack(policy, pieces, config, workload)
    return packing, time.process_time() - started


def _row(
    policy: str, packing: Packing, workload: Workload, schedule: Schedule, order: str
) -> dict[str, Any]:
    config = packing.config
    if packing.steps is None:
        raise ValueError(
            f"the documents hold {int(packing.tail.tokens.sum())} tokens, less than a step of "
            f"{config.intake_tokens}; use more documents or a smaller step"
        )
    meter = BalanceMeter(config, schedule=schedule, order=order)
    meter.add(packing.steps)
    bounds = BindingMeter(config, packing.policy)
    bounds.add(packing.steps)
    return {
        "policy": policy,
        "made_by": packing.policy,
        "thresholds": list(config.thresholds),
        **meter.result().as_dict(),
        "binding": bounds.binding(),
        "binding_shares": bounds.shares(),
        "outside_bands": outside_bands(packing.steps, config) if policy == "lookahead" else 0,
        "intake_tokens": config.intake_tokens,
        "tail_tokens": int(packing.tail.tokens.sum()),
        "tail_pieces": len(packing.tail),
        "violations": _violations(packing),
        "solver": _solver(packing),
    }


def _solver(packing: Packing) -> dict[str, int | float] | None:
    """How the solver fared with the windows, where there was one."""
    solved = packing.solved
    if not solved:
        return None
    return {
        "windows": len(solved),
        "at_limit": sum(window.at_limit for window in solved),
        "gap_mean": sum(window.gap for window in solved) / len(solved),
        "gap_max": max(window.gap for window in solved),
        "seconds": sum(window.seconds for window in solved),
    }


def _violations(packing: Packing) -> dict[str, int]:
    """Micro-batches over their bounds, pieces out of theirs, and whole steps left in the tail."""
    steps, config = packing.steps, packing.config
    assert steps is not None
    row_pieces = np.diff(steps.row_offsets)
    displacement = steps.displacement(config.intake_tokens)
    tail = packing.tail
    left_steps = min(
        int(tail.tokens.sum()) // config.intake_tokens, len(tail) // config.num_micro_batches
    )
    return {
        "max_tokens": int(np.count_nonzero(steps.row_tokens > config.max_tokens)),
        "max_pieces": int(np.count_nonzero(row_pieces > (config.max_pieces or len(displacement)))),
        "max_displacement": int(np.count_nonzero(displacement > config.max_displacement)),
        "steps_left": left_steps,
    }
