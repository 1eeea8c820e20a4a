"""Settings to the packer's bounds: what a policy packs under, thresholds tuned."""

from __future__ import annotations

import logging
from dataclasses import replace

from packer.packing.config import PackingConfig
from packer.packing.whole import pack
from packer.plan import Pieces
from packer.stream import Stream
from packer.tuning import tune_thresholds
from packer.workload import Workload
from pipeline.config import RunConfig
from pipeline.settings.cluster import schedule_of

log = logging.getLogger(__name__)

_TUNING_PIECES = 400_000
"""The head of the stream that thresholds are tuned on."""
_OF_SCHEDULE = ("dp_size", "pp_size", "virtual_stages", "coupling")
"""Settings of the cluster that a search by its time looks at."""
_OF_POLICY = {
    "fixed_greedy": {"global_batches", "longest_first"},
    "wlb": {"thresholds", "max_queues", "mean_displacement"},
    "lookahead": {
        "thresholds",
        "max_queues",
        "mean_displacement",
        "window_steps",
        "moves_per_piece",
        "objective",
        "token_band",
        "source_band",
    },
}
"""Settings that one policy looks at and another does not."""


def packing_config(config: RunConfig) -> PackingConfig:
    """The packer's bounds, thresholds still open where they are to be tuned."""
    settings = config.packing
    return PackingConfig(
        num_micro_batches=settings.num_micro_batches,
        context_length=settings.context_length,
        max_tokens=settings.bound,
        max_pieces=settings.max_pieces,
        max_displacement=settings.max_displacement,
        mean_displacement=settings.mean_displacement,
        window_steps=settings.window_steps,
        moves_per_piece=settings.moves_per_piece,
        schedule=schedule_of(config.parallel) if settings.objective == "schedule" else None,
        token_band=settings.token_band,
        global_batches=settings.global_batches,
        longest_first=settings.longest_first,
        source_band=settings.source_band,
        thresholds=() if settings.thresholds == "tune" else tuple(settings.thresholds),
    )


def settings_used(config: RunConfig) -> dict[str, object]:
    """The settings that the policy looks at, in JSON types."""
    settings = config.packing
    used = _OF_POLICY.get(settings.policy, set())
    fields = settings.model_dump(exclude=set().union(*_OF_POLICY.values()) - used)
    if "objective" in used and settings.objective == "schedule":
        fields["schedule"] = config.parallel.model_dump(include=set(_OF_SCHEDULE))
    return fields


def tuned(stream: Stream, config: RunConfig, workload: Workload) -> PackingConfig:
    """The packer's bounds with thresholds, tuned on the stream's head where none are given."""
    bounds = packing_config(config)
    settings = config.packing
    if settings.policy == "lookahead" and settings.objective == "schedule":
        parallel = config.parallel
        warn_of_one_rank(parallel.dp_size, parallel.pp_size, "[parallel]", "packing.objective")
    if settings.policy not in ("wlb", "lookahead") or settings.thresholds != "tune":
        return bounds
    head = next(iter(stream.chunks(_TUNING_PIECES)), Pieces.empty())
    fitting = pack("wlb", head, bounds, workload).config  # with an intake that steps can hold
    tuning = tune_thresholds(
        head,
        fitting,
        workload,
        mean_displacement=settings.mean_displacement,
        max_queues=settings.max_queues,
    )
    log.info(
        "%s %s tokens: excess %.3f at mean displacement %.2f on the first %d pieces",
        "thresholds" if settings.policy == "wlb" else "beside look-ahead wlb with thresholds",
        list(tuning.thresholds),
        tuning.excess,
        tuning.displacement_mean,
        len(head),
    )
    return replace(fitting if settings.policy == "wlb" else bounds, thresholds=tuning.thresholds)


def warn_of_one_rank(dp_size: int, pp_size: int, sizes: str, objective: str) -> None:
    """Say that `lookahead` has nothing to do, and by which settings it has."""
    if dp_size == pp_size == 1:
        log.warning(
            "policy lookahead for one data-parallel and one pipeline rank: any plan takes as long, "
            'so nothing is moved; set %s to your cluster, or %s to "max"',
            sizes,
            objective,
        )
