"""Length indexes to a plan: stream, policy, plan parts.

One pass over the stream of pieces, chunk by chunk; nothing here sees a token. Beside every plan
part stands its inverse in scratch: the same pieces in the order in which the token stores hold
them, which is what moving the tokens needs.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from packer.packing.packer import Packer, PackingError, pack, with_lower_intake
from packer.plan import PackingConfig, Pieces
from packer.stream import Stream
from packer.tuning import tune_thresholds
from packer.workload import Workload
from pipeline.config import PackingSettings, RunConfig, fingerprint
from pipeline.planning.mixing import PlanError, open_stream, segment_sources, selection_totals
from pipeline.planning.plan_parts import PlanParts, tail_table
from pipeline.planning.runs import RunGroups
from pipeline.planning.workloads import resolve_workload
from pipeline.shard.manifest import Segment, SegmentSource
from pipeline.shard.token_store import TokenStore
from pipeline.shard.writer import write_table

log = logging.getLogger(__name__)

_TUNING_PIECES = 400_000
"""The head of the stream that thresholds are tuned on."""


def packing_config(settings: PackingSettings) -> PackingConfig:
    """The packer's bounds, thresholds still open where they are to be tuned."""
    return PackingConfig(
        num_micro_batches=settings.num_micro_batches,
        context_length=settings.context_length,
        max_tokens=settings.bound,
        max_pieces=settings.max_pieces,
        max_displacement=settings.max_displacement,
        mean_displacement=settings.mean_displacement,
        window_steps=settings.window_steps,
        moves_per_piece=settings.moves_per_piece,
        global_batches=settings.global_batches,
        longest_first=settings.longest_first,
        thresholds=() if settings.thresholds == "tune" else tuple(settings.thresholds),
    )


def plan_key(store_keys: Sequence[str], config: RunConfig) -> str:
    """What a plan depends on, as 64 hex digits: lengths and the settings of this stage alone."""
    return fingerprint(
        {
            "stores": list(store_keys),
            "sources": [
                {
                    "weight": source.weight,
                    "max_epochs": source.max_epochs,
                    **config.documents_of(source).model_dump(),
                }
                for source in config.sources
            ],
            "mixture": {**config.mixture.model_dump(), "at_source_end": config.at_source_end},
            "packing": config.packing.model_dump(exclude=_unused(config.packing)),
            "workload": resolve_workload(config.workload).as_dict(),
            "shard_tokens": config.shards.shard_tokens,
            "run_tokens": config.shards.run_tokens,
        }
    )


def _unused(settings: PackingSettings) -> set[str]:
    """Settings that the policy does not look at."""
    used = {
        "wlb": {"thresholds", "max_queues", "mean_displacement"},
        "lookahead": {"window_steps", "moves_per_piece", "mean_displacement"},
        "fixed_greedy": {"global_batches", "longest_first"},
    }
    return set().union(*used.values()) - used.get(settings.policy, set())


def tuned(stream: Stream, config: RunConfig, workload: Workload) -> PackingConfig:
    """The packer's bounds with thresholds, tuned on the stream's head where none are given."""
    bounds = packing_config(config.packing)
    if config.packing.policy != "wlb" or config.packing.thresholds != "tune":
        return bounds
    head = next(iter(stream.chunks(_TUNING_PIECES)), Pieces.empty())
    bounds = pack("wlb", head, bounds, workload).config  # with an intake that steps can hold
    tuning = tune_thresholds(
        head,
        bounds,
        workload,
        mean_displacement=config.packing.mean_displacement,
        max_queues=config.packing.max_queues,
    )
    log.info(
        "thresholds %s tokens: excess %.3f at mean displacement %.2f on the first %d pieces",
        list(tuning.thresholds),
        tuning.excess,
        tuning.displacement_mean,
        len(head),
    )
    return replace(bounds, thresholds=tuning.thresholds)


def write_plan(
    root: Path, scratch: Path, stores: Sequence[TokenStore], config: RunConfig
) -> dict[str, Any]:
    """Plan the whole stream and write `plan/`, `steps.parquet`, `tail.parquet` and the inverses.

    Args:
        root: the set's directory.
        scratch: where the inverse of each plan part goes.
        stores: token stores in the order of `config.sources`.
        config: the whole configuration; `plan_key` says what of it matters.

    Returns:
        The stage's receipt: `files` (a receipt each), `segment`, `totals`, in JSON types.

    Raises:
        PlanError: the stream allows no step within the bounds.
    """
    workload = resolve_workload(config.workload)
    stream = open_stream(stores, config)

    def attempt(bounds: PackingConfig) -> dict[str, Any]:
        return _plan_once(root, scratch, stores, config, stream, bounds, workload)

    try:
        return with_lower_intake(tuned(stream, config, workload), attempt)
    except PackingError as error:
        raise PlanError(str(error)) from error


def _plan_once(
    root: Path,
    scratch: Path,
    stores: Sequence[TokenStore],
    config: RunConfig,
    stream: Stream,
    bounds: PackingConfig,
    workload: Workload,
) -> dict[str, Any]:
    settings = config.packing
    packer = Packer(settings.policy, bounds, workload)
    tokens_per_step = settings.num_micro_batches * settings.context_length
    parts = PlanParts(
        root,
        scratch,
        groups=RunGroups.of(stores, run_tokens=config.shards.run_tokens),
        steps_per_part=max(1, config.shards.shard_tokens // tokens_per_step),
        num_sources=len(stores),
    )
    run = stream.chunks()
    for steps in packer.steps_of(run):
        parts.add(steps)
    sources = segment_sources(config, stream, run.selection())
    stream_tokens = sum(source.tokens for source in sources)
    if not parts.has_steps:
        raise PlanError(
            f"the stream has {stream_tokens} tokens in {len(packer.tail)} pieces, less than one "
            f"step of {bounds.intake_tokens} tokens and {bounds.num_micro_batches} pieces; add "
            "documents or epochs, or lower packing.num_micro_batches or packing.context_length"
        )
    receipts = [*parts.finish(), write_table(tail_table(packer.tail), root, "tail.parquet")]
    segment = _segment(config, bounds, parts, sources)
    return {
        "files": [receipt.as_dict() for receipt in receipts],
        "segment": asdict(segment),
        "totals": parts.totals(packer.tail) | selection_totals(sources),
    }


def _segment(
    config: RunConfig,
    bounds: PackingConfig,
    parts: PlanParts,
    sources: tuple[SegmentSource, ...],
) -> Segment:
    return Segment(
        first_step=0,
        steps=parts.num_steps,
        first_part=0,
        parts=parts.num_parts,
        num_micro_batches=bounds.num_micro_batches,
        context_length=bounds.context_length,
        max_tokens=bounds.max_tokens,
        max_pieces=bounds.max_pieces,
        intake_tokens=bounds.intake_tokens,
        max_displacement=bounds.max_displacement,
        policy=config.packing.policy,
        thresholds=bounds.thresholds,
        seed=config.mixture.seed,
        sources=sources,
        stream_tokens=sum(source.tokens for source in sources),
        target_tokens=config.mixture.target_tokens,
        at_source_end=config.at_source_end,
    )
