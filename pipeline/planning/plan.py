"""Length indexes to a plan: stream, policy, plan parts.

One pass over the stream of pieces, chunk by chunk; nothing here sees a token. Beside every plan
part stands its inverse in scratch: the same pieces in the order in which the token stores hold
them, which is what moving the tokens needs.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from packer.packing.config import PackingConfig
from packer.packing.packer import Packer, PackingError, Search
from packer.packing.rivals import best_of_rivals
from packer.packing.search.objective import Merit, MeritMeter
from packer.packing.whole import with_lower_intake
from packer.workload import Workload
from pipeline.config import RunConfig, fingerprint
from pipeline.planning.bounds import settings_used, tuned
from pipeline.planning.chain import ChainEnd
from pipeline.planning.mixing import (
    PlanError,
    asked_for,
    open_stream,
    segment_sources,
    selection_totals,
)
from pipeline.planning.plan_parts import PlanParts
from pipeline.planning.runs import RunGroups
from pipeline.planning.workloads import resolve_workload
from pipeline.shard.segment import Segment, SegmentSource


def plan_key(
    store_keys: Sequence[str],
    config: RunConfig,
    *,
    after: str | None = None,
    workload: Workload | None = None,
) -> str:
    """What a plan depends on, as 64 hex digits: lengths and the settings of this stage alone.

    Args:
        store_keys: of the sources' token stores, in the order of `config.sources`.
        config: the whole configuration.
        after: the key of the chain before it (`planning.chain`); None for a first segment.
        workload: the chain's model, likewise.
    """
    before = {} if after is None else {"after": after}
    return fingerprint(
        before
        | {
            "stores": list(store_keys),
            "sources": asked_for(config),
            "mixture": {**config.mixture.model_dump(), "at_source_end": config.at_source_end},
            "packing": settings_used(config),
            "workload": (workload or resolve_workload(config.workload)).as_dict(),
            "shard_tokens": config.shards.shard_tokens,
            "run_tokens": config.shards.run_tokens,
        }
    )


def write_plan(
    root: Path,
    scratch: Path,
    chain: ChainEnd,
    config: RunConfig,
    search: Search = map,
) -> dict[str, Any]:
    """Plan a segment and write `plan/`, `steps.parquet`, `tail.parquet` and the inverses.

    Args:
        root: where they go: the set's directory, or where parts wait to be published.
        scratch: where the inverse of each plan part goes.
        chain: what the segment is added to, and the token stores.
        config: the whole configuration; `plan_key` says what of it matters.
        search: maps the search over windows of `lookahead`; the plan does not depend on it.

    Returns:
        The stage's receipt: `files` (a receipt each), `segment`, and its `totals`, in JSON types.

    Raises:
        PlanError: the stream allows no step within the bounds.
    """
    planner = _Planner(root, scratch, chain, config, search)
    try:
        bounds = tuned(planner.stream, config, planner.workload)
        if config.packing.policy == "lookahead":
            return best_of_rivals(bounds, planner.plan, planner.worth)
        return planner.plan(config.packing.policy, bounds)[0]
    except PackingError as error:
        raise PlanError(str(error)) from error


class _Planner:
    """One stream, planned with one policy or another."""

    def __init__(
        self,
        root: Path,
        scratch: Path,
        chain: ChainEnd,
        config: RunConfig,
        search: Search,
    ) -> None:
        self._root, self._scratch, self._chain, self._config = root, scratch, chain, config
        self._search = search
        self.workload = chain.workload or resolve_workload(config.workload)
        self.stream = open_stream(chain, config)

    def worth(self, policy: str, config: PackingConfig) -> Merit | None:
        """What a policy's plan would be worth; None where it has none. Writes nothing."""

        def attempt(bounds: PackingConfig) -> Merit | None:
            meter = MeritMeter(bounds)
            for steps in Packer(policy, bounds, self.workload).steps_of(self.stream.chunks()):
                meter.add(steps)
            return meter.result()

        try:
            return with_lower_intake(config, attempt)
        except PackingError:
            return None

    def plan(self, policy: str, config: PackingConfig) -> tuple[dict[str, Any], Merit | None]:
        """Write a policy's plan: the stage's receipt, and what it is worth."""

        def attempt(bounds: PackingConfig) -> tuple[dict[str, Any], Merit | None]:
            return self._plan_once(policy, bounds)

        return with_lower_intake(config, attempt)

    def _plan_once(self, policy: str, bounds: PackingConfig) -> tuple[dict[str, Any], Merit | None]:
        config = self._config
        tokens_per_step = bounds.num_micro_batches * bounds.context_length
        parts = PlanParts(
            self._root,
            self._scratch,
            groups=RunGroups.of(self._chain.stores, run_tokens=config.shards.run_tokens),
            steps_per_part=max(1, config.shards.shard_tokens // tokens_per_step),
            chain=self._chain,
        )
        packer = Packer(policy, bounds, self.workload, search=self._search)
        run, meter = self.stream.chunks(), MeritMeter(bounds)
        for steps in packer.steps_of(run):
            parts.add(steps)
            meter.add(steps)
        sources = segment_sources(asked_for(config), self.stream, run.selection())
        if not parts.has_steps:
            raise PlanError(
                f"the stream has {sum(source.tokens for source in sources)} tokens in "
                f"{len(packer.tail)} pieces, less than one step of {bounds.intake_tokens} tokens "
                f"and {bounds.num_micro_batches} pieces; add documents or epochs, or lower "
                "packing.num_micro_batches or packing.context_length"
            )
        receipts = parts.finish(packer.tail)
        segment = self._segment(policy, bounds, parts, sources)
        return {
            "files": [receipt.as_dict() for receipt in receipts],
            "segment": segment.as_dict(),
            "totals": parts.totals(packer.tail) | selection_totals([segment]),
        }, meter.result()

    def _segment(
        self,
        policy: str,
        bounds: PackingConfig,
        parts: PlanParts,
        sources: tuple[SegmentSource, ...],
    ) -> Segment:
        config, chain = self._config, self._chain
        return Segment(
            first_step=chain.steps,
            steps=parts.num_steps,
            first_part=chain.parts,
            parts=parts.num_parts,
            num_micro_batches=bounds.num_micro_batches,
            context_length=bounds.context_length,
            max_tokens=bounds.max_tokens,
            max_pieces=bounds.max_pieces,
            intake_tokens=bounds.intake_tokens,
            max_displacement=bounds.max_displacement,
            policy=policy,
            thresholds=bounds.thresholds if policy == "wlb" else (),
            seed=config.mixture.seed,
            sources=sources,
            stream_tokens=sum(source.tokens for source in sources),
            target_tokens=config.mixture.target_tokens,
            at_source_end=config.at_source_end,
        )
